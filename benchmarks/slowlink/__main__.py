"""What slow links leave of a training loop's speed: torch's ways and ours, and whether the simulator knew.

Each node is a process in a network namespace of its own, on a core of its own, behind a link limited by a token bucket
in both directions. The batch is chosen so that the link needs 1.35 times as long for a gradient as the processor, which
leaves torch DDP 0.3 to 0.5 of the speed of the same loop without any communication. All rows run in turns, each against
the bare loop of the same round; a share is the median over rounds. PostLocalSGD at CELGC's own period sends the same
bytes as often as CELGC in float32 does: those two rows can only differ by noise, and only the bf16 row is held against
it. Needs Linux, root, and the commands ip and tc.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import arguments, finish
from benchmarks.slowlink.contenders import HPSGD, OURS, SWARM, TORCH
from benchmarks.slowlink.crew import run_everywhere
from benchmarks.slowlink.prediction import predicted_seconds
from flockstep import units
from flockstep.compare.lab.commands import Missing
from flockstep.compare.lab.lab import Lab

RESULTS = Path(__file__).parents[1] / "results"
NAME = "benchmarks.slowlink"
PREDICTED = ("DataParallel", "CELGC, I = 4", "CELGC, I = 16")
BEST, BEST_SHORT = "CELGC, I = 16", "CELGC, I = 16, bf16"
LEAST_HIDDEN = 0.95
LEAST_SHARE, PREDICTION_WITHIN, DDP_BETWEEN = 0.85, 0.15, (0.3, 0.5)
_PROBE_SECONDS = 2.0
_LONGEST = 1800.0

Found = dict[str, Any]
Pairs = list[tuple[float, float]]


def main() -> None:
    """Build the laboratory, measure, predict, tell."""
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument("--nodes", type=int, default=2, help="how many (default: %(default)s)")
    parser.add_argument("--rate", default="100 Mbit/s", help="of each link, both ways (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="how often every row has its turn (default: 15)")
    options = parser.parse_args()
    # So that an end by SIGTERM is an orderly one, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)
    hidden, rounds = (16, 1) if options.quick else (256, options.rounds or 15)
    try:
        with Lab(nodes=options.nodes, rate=options.rate) as lab:
            link, found = measure(lab, hidden, rounds)
    except Missing as reason:
        print(f"slowlink cannot run here: {reason}")
        print(json.dumps({"name": NAME, "skipped": str(reason), "met": {}}))
        return
    print(json.dumps(found), file=sys.stderr)
    rows = [tell(name, pairs) for name, pairs in found["seconds"].items()]
    for row in rows:
        if row["row"] in PREDICTED:
            pairs = found["seconds"][row["row"]]
            row |= predict(row["row"], pairs, hidden, options.nodes, options.rate, link["latency"])
    note = describe(link, found, options.nodes, options.rate, rounds)
    folder = options.out or (None if options.quick else RESULTS)
    figures = {"shares": {row["row"]: row["share"] for row in rows}, "goodput": link["share_of_rate"]}
    # Rows of another number of nodes are kept beside those of two.
    name = NAME if options.nodes == 2 else f"{NAME}_{options.nodes}"
    finish(name, rows, figures=figures, met=bars(rows), folder=folder, note=note)


def measure(lab: Lab, hidden: int, rounds: int) -> tuple[Found, Found]:
    """What the links give, and each row's seconds per step, round by round."""
    nbytes = round(lab.bytes_per_second * _PROBE_SECONDS)
    link = run_everywhere(lab, f"{NAME}.probe", "--nbytes", str(nbytes), timeout=60)[0]
    link["share_of_rate"] = round(link["bytes_per_second"] / lab.bytes_per_second, 3)
    words = ["--bytes-per-second", str(link["bytes_per_second"]), "--hidden", str(hidden), "--rounds", str(rounds)]
    return link, run_everywhere(lab, f"{NAME}.worker", *words, timeout=_LONGEST)[0]


def tell(name: str, pairs: Pairs) -> Found:
    """One row of the table, from a contender's seconds per step and the bare loop's beside it."""
    shares = [bare / mine for mine, bare in pairs]
    return {
        "row": name,
        "share": round(statistics.median(shares), 3),
        "from": round(min(shares), 3),
        "to": round(max(shares), 3),
        "ms/step": round(1e3 * statistics.median(mine for mine, _ in pairs), 1),
        "bare ms/step": round(1e3 * statistics.median(bare for _, bare in pairs), 1),
    }


def predict(name: str, pairs: Pairs, hidden: int, nodes: int, rate: str, latency: float) -> Found:
    """The simulator's time for a row, from each round's bare loop; the ratio is the median over rounds."""
    expected = [
        predicted_seconds(OURS[name], hidden=hidden, nodes=nodes, compute=bare, rate=rate, latency=latency)
        for _, bare in pairs
    ]
    ratios = [guess / truth for guess, (truth, _) in zip(expected, pairs, strict=True)]
    return {"predicted": round(1e3 * statistics.median(expected), 1), "ratio": round(statistics.median(ratios), 3)}


def describe(link: Found, found: Found, nodes: int, rate: str, rounds: int) -> str:
    """What was measured, in words."""
    return (
        f"{nodes} nodes, LSTM of {found['parameters']:,} parameters, batch {found['batch']} x 32 characters, "
        f"one thread each; {rounds} round(s) of 16 steps.\n"
        f"Links of {rate}: a plain socket gets {link['share_of_rate']:.3f} of it (headers take 0.044), "
        f"one-way delay {units.show_seconds(link['latency'])}, TCP with {link['congestion_control']}."
    )


def bars(rows: list[Found]) -> dict[str, bool]:
    """What was to be shown."""
    share = {row["row"]: row["share"] for row in rows}
    low, high = DDP_BETWEEN
    torchs = max(TORCH, key=lambda name: share[name])
    met = {
        f"torch DDP keeps {share['torch DDP']}, between {low} and {high}": low <= share["torch DDP"] <= high,
        f"{BEST} keeps {share[BEST]}, at least {LEAST_SHARE}": share[BEST] >= LEAST_SHARE,
        f"{BEST} keeps {share[BEST]}, ahead of {torchs} with {share[torchs]}": share[BEST] > share[torchs],
        f"{BEST_SHORT} keeps {share[BEST_SHORT]}, ahead of {torchs} with {share[torchs]}": (
            share[BEST_SHORT] > share[torchs]
        ),
    }
    rest = max((name for name in share if name in TORCH or name.startswith("CELGC")), key=lambda name: share[name])
    for name in (SWARM, HPSGD):
        met[f"{name} keeps {share[name]}, at least {LEAST_HIDDEN}"] = share[name] >= LEAST_HIDDEN
    met[f"{SWARM} keeps {share[SWARM]}, ahead of {rest} with {share[rest]}"] = share[SWARM] > share[rest]
    for row in rows:
        if row["row"] in PREDICTED:
            bar = f"{row['row']}: predicted / measured is {row['ratio']}, within {PREDICTION_WITHIN:.0%}"
            met[bar] = abs(row["ratio"] - 1) <= PREDICTION_WITHIN
    return met


if __name__ == "__main__":
    main()
