"""What a second machine is worth: two processes under DPSVI with a slow link between them, against one process.

20 Newsgroups, 100 topics. Every process learns on one thread, keeps to cores of its own (--cores;
with one, coding and sending take their time from learning), and has a network namespace of its own, whose link gives
100 Mbit/s each way. Both take the same number of batches in all, of the same size. Seconds are of training alone: from
the moment both processes are ready until the server has the last push; no loading, no compiling, no looks. Perplexity
is of a test part that no setting was chosen on (document completion, the same scorer for all). Runs alternate.

Bars: the perplexity of two processes is within 2% of one's, and they are 1.7 times as fast.

Needs root, network namespaces, and cores for both.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.report import Progress, arguments, finish
from benchmarks.slowlink.crew import run_everywhere
from flockstep.compare.lab.commands import Missing
from flockstep.compare.lab.lab import Lab

NAME = "benchmarks.lda.nodes"
RESULTS = Path(__file__).parents[1] / "results"
WORKER = "benchmarks.lda.nodes_worker"
LEAST_FASTER, MOST_WORSE = 1.7, 1.02
RATE = "100 Mbit/s"
Row = dict[str, Any]


def main() -> None:
    """Run all, tell all."""
    parser = arguments(NAME, __doc__ or "")
    # Found best on the validation part, among those whose messages fit the link.
    for name, best in (("batch", 512), ("local-steps", 8), ("ahead", 8), ("bits", 8), ("passes", 20), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=best)
    parser.add_argument("--objective", choices=("cvb0", "map", "vb"), default="cvb0")
    parser.add_argument("--cores", type=int, default=1, help="of each process (default: %(default)s)")
    options = parser.parse_args()
    repeats, passes = (1, 2) if options.quick else (options.repeats, options.passes)
    settings: dict[str, Any] = {
        "objective": options.objective,
        "topics": 20 if options.quick else 100,
        "batch": options.batch,
        "passes": passes,
        "local-steps": options.local_steps,
        "ahead": options.ahead,
        "bits": options.bits,
        "cores": options.cores,
    }
    try:
        rows = _rows(settings, repeats)
    except Missing as reason:
        print(f"{NAME} cannot run here: {reason}")
        print(json.dumps({"name": NAME, "skipped": str(reason), "met": {}}))
        return
    faster = statistics.median(row["times as fast"] for row in rows)
    # From another beginning topics differ by a percent or two: what counts is the mean over seeds.
    worse = statistics.mean(row["two, test"] for row in rows) / statistics.mean(row["one, test"] for row in rows)
    finish(
        "benchmarks.lda_nodes",
        rows,
        figures={
            "times_as_fast": round(faster, 3),
            "perplexity_ratio": round(worse, 4),
            "bytes_per_document": statistics.median(row["bytes/document"] for row in rows),
        },
        met={
            f"two processes at least {LEAST_FASTER} times as fast": faster >= LEAST_FASTER,
            f"their perplexity at most {MOST_WORSE} times that of one": worse <= MOST_WORSE,
        },
        folder=options.out or (None if options.quick else RESULTS),
        note=f"link {RATE} each way; bytes of both directions",
    )


def _rows(settings: dict[str, Any], repeats: int) -> list[Row]:
    """One and two processes in turns, with every seed."""
    rows: list[Row] = []
    progress = Progress(2 * repeats)
    with Lab(nodes=2, rate=RATE) as lab:
        for seed in range(repeats):
            progress(f"one process, seed {seed}")
            one = _run(lab, settings, seed, alone=True)
            progress(f"two processes, seed {seed}")
            rows.append({"seed": seed, **settings, **_compared(one, _run(lab, settings, seed, alone=False))})
    return rows


def _run(lab: Lab, settings: dict[str, Any], seed: int, *, alone: bool) -> list[dict[str, Any]]:
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    nodes = lab.nodes[:1] if alone else lab.nodes
    return run_everywhere(lab, WORKER, *words, "--seed", str(seed), *["--alone"] * alone, timeout=600.0, nodes=nodes)


def _compared(alone: list[dict[str, Any]], pair: list[dict[str, Any]]) -> Row:
    one, (server, worker) = alone[0], pair
    seconds = max(node["ended"] for node in pair) - min(node["began"] for node in pair)
    batches = server["batches"] + worker["batches"]
    documents = batches * one["documents"] / one["batches"]
    return {
        "one, s": round(one["seconds"], 3),
        "two, s": round(seconds, 3),
        "times as fast": round(one["seconds"] / seconds, 3),
        "one, batches": one["batches"],
        "two, batches": batches,
        "one, validation": round(one["validation"], 1),
        "two, validation": round(server["validation"], 1),
        "one, test": round(one["test"], 1),
        "two, test": round(server["test"], 1),
        "bytes/document": round((worker["sent"] + worker["received"]) / documents, 1),
        "busy": round(statistics.mean(node["computing"] / seconds for node in pair), 3),
    }


if __name__ == "__main__":
    main()
