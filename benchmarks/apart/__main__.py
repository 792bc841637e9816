"""Do nodes that wait for nobody stay together on a link much slower than a step?

Two real processes, each in a network namespace of its own behind a link of 50 Mbit/s, 2,000 steps of an ordinary loop
(a small network, AdamW, data that differ from node to node), under Swarm and AD-PSGD; a model takes dozens of steps to
cross. The spread, the mean squared distance of the models from their average, is looked at 20 times. Beside it: nodes
that never talk. Needs Linux, root, and the commands ip and tc.

Bars: the spread stays below a tenth of what it is for nodes that never talk; no run drifts apart; every node's own
model ends below the loss of such nodes.
"""

from __future__ import annotations

import json
import math
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.apart.worker import ALONE, CONTENDERS
from benchmarks.report import arguments, finish
from benchmarks.slowlink.crew import run_everywhere
from flockstep.compare.lab.commands import Missing
from flockstep.compare.lab.lab import Lab
from flockstep.drift import drift
from flockstep.trace import Row

RESULTS = Path(__file__).parents[1] / "results"
NAME = "benchmarks.apart"
BELOW = 0.1


def main() -> None:
    """Build the laboratory, train, tell."""
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument("--nodes", type=int, default=2, help="how many (default: %(default)s)")
    parser.add_argument("--rate", default="50 Mbit/s", help="of each link, both ways (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="of every node (default: 2000)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)
    steps, hidden = (100, 64) if options.quick else (options.steps or 2000, 512)
    words = ["--steps", str(steps), "--hidden", str(hidden), "--batch", "32"]
    try:
        with Lab(nodes=options.nodes, rate=options.rate) as lab:
            everyones = run_everywhere(lab, f"{NAME}.worker", *words, timeout=1800)
    except Missing as reason:
        print(f"apart cannot run here: {reason}")
        print(json.dumps({"name": NAME, "skipped": str(reason), "met": {}}))
        return
    rows = [tell(name, [found[name] for found in everyones], steps) for name in CONTENDERS]
    folder = options.out or (None if options.quick else RESULTS)
    note = (
        f"{options.nodes} processes, links of {options.rate}, {steps} steps each; losses on the same 2,000 test points."
    )
    finish(NAME, rows, figures={"steps": steps}, met=bars(rows), folder=folder, note=note)


def tell(name: str, found: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """One line of the table."""
    rows = [Row(**row) for row in found[0]["rows"]]
    spreads = [row.spread for row in rows]
    own, exchanges = [each["own"] for each in found], sum(each["counts"].get("exchanges", 0) for each in found)
    return {
        "contender": name,
        "own loss, worst node": round(max(own), 4),
        "best node": round(min(own), 4),
        "of the average": round(found[0]["average"], 4),
        "largest spread": max(spreads, default=math.nan),
        "last spread": spreads[-1] if spreads else math.nan,
        "exchanges": exchanges,
        "steps between": round(steps / exchanges) if exchanges else math.nan,
        "drifts": drift(rows) is not None,
    }


def bars(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """What was to be shown, of every contender that talks."""
    alone = next(row for row in rows if row["contender"] == ALONE)
    met = {}
    for row in rows:
        if row["contender"] != ALONE:
            name, share = row["contender"], row["largest spread"] / alone["last spread"]
            met[f"{name}: spread never above {BELOW:g} of that of nodes that never talk"] = share <= BELOW
            met[f"{name}: does not drift apart"] = not row["drifts"]
            met[f"{name}: every node's own loss below theirs"] = row["own loss, worst node"] < alone["best node"]
    return met


if __name__ == "__main__":
    main()
