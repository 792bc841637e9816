"""A peer that is killed, stopped or cut off in the middle of a transfer: what the asker sees, and what is left behind.

Three nodes in network namespaces. Node 0 pulls a body from node 1 over a link limited so that the transfer takes a
while; in the middle node 1 is killed (kill -9), stopped (SIGSTOP) or loses its link. Node 0 must get LostPeer that
names node 1 within the timeout, go on with node 2, and find node 1 again once it was started anew, continued, or
connected. When its mailbox is closed after all cycles, node 0 must hold the descriptors and threads it held before it
was opened, and no process may be left. Needs Linux, root, and the commands ip and tc.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.faults.driver import KINDS, VICTIM
from benchmarks.report import arguments, finish
from benchmarks.slowlink.crew import run_everywhere
from flockstep.compare.lab.commands import Missing
from flockstep.compare.lab.lab import Lab

NAME = "benchmarks.faults"
RESULTS = Path(__file__).parents[1] / "results"
RATE, BYTES, TIMEOUT = "200 Mbit/s", 16_000_000, 1.0
_LONGEST = 1800.0


def main() -> None:
    """Build the laboratory, run the cycles, tell."""
    options = arguments(NAME, __doc__ or "").parse_args()
    cycles = 12 if options.quick else 200
    try:
        with Lab(nodes=3, rate=RATE) as lab:
            found = drive(lab, cycles)
    except Missing as reason:
        print(f"faults cannot run here: {reason}")
        print(json.dumps({"name": NAME, "skipped": str(reason), "met": {}}))
        return
    rows = [tell(kind, [row for row in found["rows"] if row["kind"] == kind]) for kind in KINDS]
    held = {when: found[when] for when in ("before", "during", "after")}
    folder = options.out or (None if options.quick else RESULTS)
    finish(NAME, rows, figures={"cycles": cycles, "held": held}, met=bars(found, cycles), folder=folder, note=str(held))


def drive(lab: Lab, cycles: int) -> dict[str, Any]:
    """Run the driver in the first node's namespace; what it found."""
    about = {
        "namespaces": [node.namespace for node in lab.nodes],
        "hosts": [node.address for node in lab.nodes],
        "timeout": TIMEOUT,
        "bytes": BYTES,
        "cycles": cycles,
    }
    return run_everywhere(lab, f"{NAME}.driver", json.dumps(about), timeout=_LONGEST, nodes=lab.nodes[:1])[0]


def tell(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the table."""
    seconds = [row["seconds"] for row in rows]
    return {
        "misfortune": kind,
        "cycles": len(rows),
        "LostPeer names it": sum(names_the_victim(row) for row in rows),
        "went on with another": sum(row["other"] for row in rows),
        "came back": sum(row["back"] for row in rows),
        "seconds, median": round(statistics.median(seconds), 3),
        "seconds, most": round(max(seconds), 3),
    }


def names_the_victim(row: dict[str, Any]) -> bool:
    """Whether the asker was told who was lost."""
    return f"lost node {VICTIM} " in row["told"]


def bars(found: dict[str, Any], cycles: int) -> dict[str, bool]:
    """What was to be shown."""
    rows, worst = found["rows"], max(row["seconds"] for row in found["rows"])
    kept = [f"{name} {found['before'][name]} before, {found['after'][name]} after" for name in found["before"]]
    return {
        f"LostPeer names the peer in all of {cycles} cycles": sum(map(names_the_victim, rows)) == cycles,
        f"within the timeout: {worst:.3f} s at most, of {TIMEOUT:g} s": worst <= TIMEOUT,
        "the asker went on with another in every cycle": all(row["other"] for row in rows),
        "the peer came back in every cycle": all(row["back"] for row in rows),
        f"nothing left: {'; '.join(kept)}; {found['processes']} processes": (
            found["before"] == found["after"] and not found["processes"]
        ),
    }


if __name__ == "__main__":
    main()
