"""What a mean over streams of the mailbox costs beside gloo's all-reduce and bare sockets, and on a slow link.

Every node is a process with one thread of torch. All rows are open at once and take turns, in another order each round;
a ratio is of two rows of one round, the median over rounds. gloo sums in place; the mean leaves what it was given as it
is, checks all that arrives, and divides. Bare TLS sockets bring the same bytes there and back and do nothing else. "Of
its CPU" is the same ratio for seconds of a core: on a machine with other things to do, it is the steadier one.

Over links: two nodes in network namespaces, behind a token bucket in both directions, as for benchmarks.slowlink; the
link's own limit is what bare sockets that bring the same bytes both ways at once get out of it in the same round. That
part needs Linux, root, and the commands ip and tc.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.elastic.rows import AGAINST, BARE, BARE_TLS, GLOO, MEAN, MEAN_TLS
from benchmarks.mailbox.ways import quartiles
from benchmarks.report import Progress, arguments, finish
from benchmarks.slowlink.crew import run_everywhere
from flockstep.backends.real.mailbox.endpoint import LOOPBACK
from flockstep.backends.real.security import keys
from flockstep.compare.lab.commands import Missing
from flockstep.compare.lab.lab import Lab

RESULTS = Path(__file__).parents[1] / "results"
ROOT = Path(__file__).parents[2]
NAME = "benchmarks.elastic"
SIZES = (1_000, 64_000, 1_000_000, 4_000_000, 32_000_000, 128_000_000, 500_000_000)
QUICK = (1_000, 64_000, 4_000_000)
LONG = 4_000_000
LEAST_OF_GLOO, LEAST_OF_TLS, LEAST_OF_LINK = 0.9, 0.8, 0.97
RATE = "100 Mbit/s"
_LONGEST = 3600.0
Found = dict[str, Any]


def main() -> None:
    """Loopback with 2 and 4 processes, then the link."""
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument("--nodes", nargs="+", type=int, help="how many processes (default: 2 and 4)")
    parser.add_argument("--sizes", nargs="+", type=int, help="bytes of the vectors (default: 1 kB to 500 MB)")
    parser.add_argument("--repeats", type=int, help="rounds (default: 9)")
    options = parser.parse_args()
    # So that an end by SIGTERM is an orderly one, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    counts = options.nodes or ((2,) if options.quick else (2, 4))
    sizes = options.sizes or (QUICK if options.quick else SIZES)
    repeats = options.repeats or (2 if options.quick else 9)
    progress = Progress(len(counts) + 1)
    rows: list[Found] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys.create(folder / "keys", max(*counts, 2))
        for nodes in counts:
            progress(f"{nodes} processes on loopback")
            found = on_loopback(nodes, folder, words(sizes, repeats, GLOO, MEAN, BARE_TLS, MEAN_TLS))
            rows += [row for one in found for row in tell("loopback", one, AGAINST)]
        progress(f"links of {RATE}")
        linked, note = on_links(folder, 1_000_000 if options.quick else 32_000_000, 1 if options.quick else 5)
    rows += linked
    figures = {"ratios": {f"{r['where']}, {r['nodes']} x {r['bytes']}: {r['row']}": r["ratio"] for r in rows}}
    folder_out = options.out or (None if options.quick else RESULTS)
    finish(NAME, rows, figures=figures, met=bars(rows), folder=folder_out, note=note)


def words(sizes: tuple[int, ...] | list[int], repeats: int, *rows: str) -> list[str]:
    """What a node's command line says of all this."""
    return ["--sizes", *map(str, sizes), "--repeats", str(repeats), "--rows", *rows]


def on_loopback(nodes: int, folder: Path, said: list[str]) -> list[Found]:
    """Each size's times; RuntimeError where a node failed."""
    command = [sys.executable, "-m", "benchmarks.elastic.node", "--host", *[LOOPBACK] * nodes, "--folder", str(folder)]
    running: list[subprocess.Popen[str]] = []
    try:
        for rank in range(nodes):
            environment = {**os.environ, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
            running.append(
                subprocess.Popen([*command, *said], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
            )
        told = [process.communicate(timeout=_LONGEST)[0] for process in running]
        if any(process.returncode for process in running):
            raise RuntimeError("a node failed, see above")
    finally:
        for process in running:
            process.kill()
            process.wait()
    found: list[Found] = json.loads(told[0].splitlines()[-1])
    return found


def on_links(folder: Path, size: int, repeats: int) -> tuple[list[Found], str]:
    """The link's rows, and what is to be said of them."""
    try:
        with Lab(nodes=2, rate=RATE) as lab:
            (folder / "link").mkdir()
            (folder / "link" / "keys").symlink_to(folder / "keys")
            said = ["--host", *(node.address for node in lab.nodes), "--folder", str(folder / "link")]
            said += words([size], repeats, GLOO, BARE, MEAN, MEAN_TLS)
            # The first node's, of the one size.
            found = _first(run_everywhere(lab, "benchmarks.elastic.node", *said, timeout=_LONGEST)[0])
    except Missing as missing:
        return [], f"Links were left out: {missing}"
    share = size / statistics.median(wall for wall, _ in found["took"][BARE]) / lab.bytes_per_second
    rows = tell(RATE, found, {GLOO: BARE, MEAN: BARE, MEAN_TLS: BARE})
    return rows, f"Bare sockets get {share:.3f} of {RATE} both ways at once."


def _first(said: Any) -> Found:
    found: Found = said[0]
    return found


def tell(where: str, found: Found, against: dict[str, str]) -> list[Found]:
    """The rows of one size."""
    rows = []
    for name, took in found["took"].items():
        other = found["took"][against.get(name, name)]
        low, middle, high = quartiles([theirs / mine for (mine, _), (theirs, _) in zip(took, other, strict=True)])
        rows.append(
            {
                "where": where,
                "nodes": found["nodes"],
                "bytes": found["size"],
                "row": name,
                "against": against.get(name, ""),
                "ratio": round(middle, 3),
                "quartiles": f"{low:.3f} to {high:.3f}",
                "of its CPU": round(statistics.median(t / m for (_, m), (_, t) in zip(took, other, strict=True)), 3),
                "ms": round(1e3 * statistics.median(wall for wall, _ in took), 3),
                "CPU ms": round(1e3 * statistics.median(cpu for _, cpu in took), 3),
                "rounds": len(took),
            }
        )
    return rows


def bars(rows: list[Found]) -> dict[str, bool]:
    """What was to be shown."""
    met: dict[str, bool] = {}
    for row in rows:
        which, ratio = f"{row['nodes']} x {row['bytes']:,} bytes", row["ratio"]
        if row["where"] != "loopback":
            if row["row"] in (MEAN, MEAN_TLS):
                met[f"{which} over {RATE}, {row['row']}: {ratio} of its limit, at least {LEAST_OF_LINK}"] = (
                    ratio >= LEAST_OF_LINK
                )
        elif row["bytes"] >= LONG and row["row"] in AGAINST:
            least = LEAST_OF_GLOO if row["row"] == MEAN else LEAST_OF_TLS
            met[f"{which}, {row['row']}: {ratio} of {AGAINST[row['row']]}, at least {least}"] = ratio >= least
    return met


if __name__ == "__main__":
    main()
