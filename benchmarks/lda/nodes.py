"""What a second machine is worth: two processes under DPSVI with a slow link between them, against one process.

20 Newsgroups, 100 topics. Every process learns on one thread, keeps to cores of its own (--cores;
with one, coding and sending take their time from learning), and has a network namespace of its own, whose link gives
100 Mbit/s each way. All take the same number of batches, of the same size. Seconds are of training alone: from the
moment both processes are ready until the server has the last push; no loading, no compiling, no looks. Perplexity is of
a test part that no setting was chosen on (document completion, the same scorer for all).

For every seed three things are timed, in turns: one process while the other waits; both, each on its own, with nothing
to do with each other; and the two together. Of two machines none is slower because the other works, of two processes
on one machine each is (caches, clock rates, neighbours): the second says how much.

Bars: the perplexity of two processes is within 2% of one's, and they are 1.7 times as fast as one.

Needs root, network namespaces, and cores for both.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

from benchmarks.report import arguments, finish
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
    for name, best in (("batch", 512), ("period", 8), ("ahead", 8), ("bits", 8), ("passes", 20), ("repeats", 9)):
        parser.add_argument(f"--{name}", type=int, default=best)
    for name, best in (("one", 30), ("two", 100)):
        parser.add_argument(f"--delay-of-{name}", type=int, default=best, help="learning_delay (default: %(default)s)")
    parser.add_argument("--objective", choices=("cvb0", "map", "vb"), default="cvb0")
    usual = 2 if len(os.sched_getaffinity(0)) >= 4 else 1
    parser.add_argument("--cores", type=int, default=usual, help="of each process (default: 2, or 1 of fewer than 4)")
    options = parser.parse_args()
    settings: dict[str, Any] = {
        "objective": options.objective,
        "topics": 20 if options.quick else 100,
        "batch": options.batch,
        "passes": 2 if options.quick else options.passes,
        "period": options.period,
        "ahead": options.ahead,
        "bits": options.bits,
        "delay-of-one": options.delay_of_one,
        "delay-of-two": options.delay_of_two,
        "cores": options.cores,
    }
    try:
        rows = _rows(settings, 1 if options.quick else options.repeats)
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
            "times_as_fast_by_sums": round(_sum(rows, "one, s") / _sum(rows, "two, s"), 3),
            "times_as_fast_as_one_beside_another": round(_sum(rows, "beside, s") / _sum(rows, "two, s"), 3),
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
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    with Lab(nodes=2, rate=RATE) as lab:
        first, second = run_everywhere(lab, WORKER, *words, "--repeats", str(repeats), timeout=120.0 + 120 * repeats)
    ways = ("one", "beside", "two")
    turns = [{way: (first[way][seed], second[way][seed]) for way in ways} for seed in range(repeats)]
    return [{"seed": seed, **settings, **_compared(turn)} for seed, turn in enumerate(turns)]


def _compared(turn: dict[str, tuple[Row, Row]]) -> Row:
    one, (server, worker) = turn["one"][0], turn["two"]
    seconds = max(server["ended"], worker["ended"]) - min(server["began"], worker["began"])
    batches = server["batches"] + worker["batches"]
    documents = batches * one["documents"] / one["batches"]
    return {
        "one, s": round(one["seconds"], 3),
        "beside, s": round(statistics.mean(each["seconds"] for each in turn["beside"]), 3),
        "two, s": round(seconds, 3),
        "times as fast": round(one["seconds"] / seconds, 3),
        "one, batches": one["batches"],
        "two, batches": batches,
        "one, validation": round(one["validation"], 1),
        "two, validation": round(server["validation"], 1),
        "one, test": round(one["test"], 1),
        "two, test": round(server["test"], 1),
        "bytes/document": round((worker["sent"] + worker["received"]) / documents, 1),
        "busy": round(statistics.mean(node["computing"] / seconds for node in turn["two"]), 3),
    }


def _sum(rows: list[Row], name: str) -> float:
    return float(sum(row[name] for row in rows))


if __name__ == "__main__":
    main()
