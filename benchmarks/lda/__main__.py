"""How fast are topics found, and how good are they, beside scikit-learn, gensim and tomotopy?

20 Newsgroups, 50 and 100 topics. Everybody has the settings that were best for them on a validation part (--tune shows
how they were found); perplexities are of a test part, by one scorer for all: half of each document foreseen from the
other half. Seconds are of training alone. Each peer trains to its end; then our curves say when they were as good.
scikit-learn has one job and is compared with one thread of ours; gensim and tomotopy have two workers and are compared
with two threads; the first two with the objective that is fastest, "map", tomotopy with the one that is best, "cvb0".
Documents per second are compared with scikit-learn at equal settings, tolerance included. Two threads
against one are measured in short alternating turns, on topics trained already, where a document is the same work
for both. A corpus of 200,000 documents and 100,000 words streams through 200
topics in a process of its own, whose peak memory is measured.

Bars: 12 times as fast as scikit-learn at equal perplexity, per core; 4 times as fast as tomotopy to its last
perplexity; two threads 1.8 times one; below 2 GiB.
"""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from benchmarks.lda import memory, ours, peers
from benchmarks.lda.newsgroups import Split, newsgroups
from benchmarks.lda.tuning import GRIDS, tuned
from benchmarks.report import Progress, arguments, finish, keep, table

NAME = "benchmarks.lda"
RESULTS = Path(__file__).parents[1] / "results"
SKLEARN, GENSIM, TOMOTOPY = peers.PEERS
LEAST_SKLEARN, LEAST_TOMOTOPY, LEAST_THREADS, MOST_GIB = 12.0, 4.0, 1.8, 2.0
BESIDE = {SKLEARN: ("map", 1), GENSIM: ("map", 2), TOMOTOPY: ("cvb0", 2)}
"""Whom each peer is compared with."""
OURS = list(itertools.product(("map", "cvb0"), (1, 2)))
Row = dict[str, Any]


class Bench:
    """Rows, kept as they come."""

    def __init__(self, split: Split, progress: Progress, folder: Path | None, *, quick: bool) -> None:
        self.rows: list[Row] = []
        self._split, self._progress, self._folder, self._quick = split, progress, folder, quick

    def add(self, **row: Any) -> None:
        """One more row."""
        self.rows.append({name: float(f"{x:.5g}") if isinstance(x, float) else x for name, x in row.items()})
        if self._folder is not None:
            keep(NAME, self.rows, self._folder)

    def race(self, topics: int, seed: int) -> None:
        """Everybody once."""
        train, test = self._split.train, self._split.test
        curves: dict[tuple[str, int], ours.Curve] = {}
        shown: Row = {"topics": topics, "seed": seed}
        for objective, threads in OURS:
            name = f"flockstep {objective}, {threads} thread(s)"
            self._progress(f"{topics} topics, seed {seed}, {name}")
            points = curves[objective, threads] = ours.curve(train, test, ours.model(topics, seed, objective, threads))
            passes = len(points) / 2
            self.add(**shown, system=name, **_end(points, passes * train.shape[0]))
        self._progress(f"{topics} topics, seed {seed}, flockstep vb at scikit-learn's settings")
        equal = ours.model(topics, seed, "vb", 1, mean_change_tol=1e-3, max_doc_update_iter=100)
        points = ours.curve(train, test, equal)
        as_theirs = _end(points, len(points) / 2 * train.shape[0])
        self.add(**shown, system="flockstep vb, 1 thread, tolerance of scikit-learn", **as_theirs)
        here, _ = peers.installed()
        for name, run in here.items():
            self._progress(f"{topics} topics, seed {seed}, {name}")
            done = run(train, topics, seed, **({"passes": 2} if self._quick else {}))
            perplexity = test.of_components(done.topics)
            pace = done.passes * train.shape[0] / done.seconds
            mine = ours.seconds_to(perplexity, curves[BESIDE[name]])
            self.add(
                **shown,
                system=name,
                seconds=done.seconds,
                documents_per_s=pace,
                perplexity=perplexity,
                ours_as_good_after_s=mine if mine is not None else "never: it is better",
                times=done.seconds / mine if mine is not None else 0.0,
                pace_times=as_theirs["documents_per_s"] / pace if name == SKLEARN else "",
            )

    def threads(self, topics: int, objective: str, turns: int) -> float:
        """Two threads over one, in turns."""
        train, ratios = self._split.train, []
        trained = ours.model(topics, 0, objective, 1).fit(train)
        for turn in range(turns):
            self._progress(f"{objective}, two threads against one, turn {turn + 1} of {turns}")
            one, two = (ours.pace(train, trained, threads) for threads in (1, 2))
            ratios.append(two / one)
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        told = f"two threads / one, {objective}, quartiles {low:.3g} to {high:.3g}"
        self.add(topics=topics, system=told, times=middle)
        return middle

    def memory(self, documents: int) -> float:
        """The large stream."""
        self._progress(f"{documents:,} documents through {memory.TOPICS} topics, in a process of its own")
        told = memory.in_a_child(documents)
        self.add(
            topics=memory.TOPICS,
            system=f"stream of {documents:,} documents, {memory.WORDS:,} words, map, 2 threads",
            seconds=told["seconds"],
            documents_per_s=documents / told["seconds"],
            peak_gib=told["peak_gib"],
        )
        return told["peak_gib"]

    def least(self, system: str, column: str) -> float:
        """The smallest, over numbers of topics, of the median over seeds."""
        found = [row for row in self.rows if row["system"] == system]
        medians = [
            statistics.median(row[column] for row in found if row["topics"] == topics)
            for topics in {row["topics"] for row in found}
        ]
        return float(f"{min(medians):.3g}")


def _end(points: ours.Curve, documents: float) -> Row:
    seconds, perplexity = points[-1]
    return {"seconds": seconds, "documents_per_s": documents / seconds, "perplexity": perplexity}


def main() -> None:
    """Measure, and say what was met."""
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument("--memory", action="store_true", help="only the large stream; rows not kept")
    parser.add_argument("--tune", nargs="+", choices=list(GRIDS), help="show the validation grid of these, and end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        if options.tune:
            print(table(sorted(tuned(newsgroups(), options.tune), key=lambda row: float(row["perplexity"]))))
            return
        _measure(options)


def _measure(options: Any) -> None:
    quick, only = options.quick, options.memory
    folder = options.out or (None if quick or only else RESULTS)
    here, missing = peers.installed()
    sizes, seeds, turns = ((20,), (0,), 1) if quick else ((50, 100), (0, 1, 2), 11)
    total = 1 if only else len(sizes) * len(seeds) * (1 + len(OURS) + len(here)) + 3 * turns + 2
    progress = Progress(total)
    split = newsgroups(300 if quick else None)
    bench = Bench(split, progress, folder, quick=quick)
    figures: Row = {"left out, not installed": missing}
    met: dict[str, bool] = {}
    if not only:
        progress("compiling, as on first use")
        # Half of a quick run's minute: there, it is left out.
        figures["compiling once, s"] = None if quick else round(ours.compile_seconds(), 1)
        ours.model(2, 0, "vb", 1).fit(split.train[:100])
        for seed in seeds:
            for topics in sizes:
                bench.race(topics, seed)
        _judge(bench, here, met)
        for objective in ("map", "cvb0", "vb"):
            ratio = round(bench.threads(sizes[-1], objective, turns), 2)
            met[f"{objective}: two threads {ratio}x one, at least {LEAST_THREADS}"] = ratio >= LEAST_THREADS
    peak = bench.memory(2_000 if quick else 200_000)
    met[f"stream in {peak:.2f} GiB, below {MOST_GIB:g}"] = peak < MOST_GIB
    finish(NAME, bench.rows, figures=figures, met=met, folder=folder, note="" if only else _note(bench.rows, missing))


def _judge(bench: Bench, here: dict[str, Any], met: dict[str, bool]) -> None:
    if SKLEARN in here:
        times = bench.least(SKLEARN, "times")
        met[f"{times}x scikit-learn at equal perplexity, 1 core, at least {LEAST_SKLEARN:g}"] = times >= LEAST_SKLEARN
    if TOMOTOPY in here:
        times = bench.least(TOMOTOPY, "times")
        met[f"{times}x tomotopy to its last perplexity, at least {LEAST_TOMOTOPY:g}"] = times >= LEAST_TOMOTOPY


def _note(rows: list[Row], missing: list[str]) -> str:
    lines = [f"left out, not installed: {', '.join(missing)}"] if missing else []
    ends: dict[tuple[str, int, Any], Any] = {
        (row["system"], row["topics"], row.get("seed")): row.get("perplexity") for row in rows
    }
    for (system, topics, seed), perplexity in ends.items():
        if system not in BESIDE:
            continue
        objective, threads = BESIDE[system]
        if perplexity < ends[f"flockstep {objective}, {threads} thread(s)", topics, seed]:
            lines.append(f"better at the end than what it is compared with: {system}, {topics} topics, seed {seed}")
    return "\n".join(lines or ["no peer is better at the end than what it is compared with"])


if __name__ == "__main__":
    main()
