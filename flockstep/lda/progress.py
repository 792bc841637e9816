"""What a person sees while topics are learned: a bar, documents per second, the held-out score; compiling, once."""

from __future__ import annotations

import logging
import time
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from flockstep.lda.core import bound, documents, expectations, learner, priors, topics

log = logging.getLogger("flockstep")


class Watch:
    """A bar on stderr, or nothing at all; tells how many documents a second were learned from."""

    def __init__(self, *, shown: bool, documents: float | None) -> None:
        self._bar = Progress(
            TextColumn("topics"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[what]}"),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._bar.add_task("learn", total=documents, what="")
        self._began, self._note = 0.0, ""
        self.done = 0
        """Documents learned from so far."""

    def __enter__(self) -> Watch:
        self._bar.start()
        self._began = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def on_documents(self, count: int) -> None:
        """So many more documents were learned from."""
        self.done += count
        pace = self.done / max(1e-9, time.monotonic() - self._began)
        self._bar.update(self._task, advance=count, what=f"{pace:,.0f} documents/s{self._note}")

    def scored(self, perplexity: float) -> None:
        """The held-out documents have this perplexity now."""
        self._note = f", held-out perplexity {perplexity:,.1f}"
        self._bar.update(self._task, what=f"{self._note[2:]}")


def compile_loops(*, shown: bool) -> float:
    """Have all inner loops compiled, or loaded where they were before; the seconds it took."""
    console = Console(stderr=True, quiet=not shown)
    misses, began = _misses(), time.monotonic()
    with console.status("compiling the inner loops ..."):
        _run_once()
    seconds = time.monotonic() - began
    if _misses() > misses:
        on_documents = f"compiled the inner loops in {seconds:.1f} s, cached from now on"
        console.print(on_documents)
        log.info(on_documents)
    return seconds


def _misses() -> int:
    parts = bound, documents, expectations, learner, priors, topics, priors
    found = [value for part in parts for value in vars(part).values()]
    return sum(sum(each.stats.cache_misses.values()) for each in found if hasattr(each, "stats"))


def _run_once() -> None:
    table = topics.Topics(np.ones((3, 2), np.float32), prior=0.5)
    prior = priors.MixturePrior(np.full(2, 0.5), learned=True)
    each = learner.Learner(table, learner.Rules(alpha=0.5), prior)
    batch = learner.Batch(
        starts=np.array([0, 1, 3]),
        words=np.array([0, 1, 2], np.int32),
        counts=np.ones(3, np.float32),
        chosen=np.arange(2),
    )
    table.fold(each.learn(batch, rate=0.5, of=2))
    gamma = np.ones((2, 2), np.float32)
    bound.documents_bound(table, batch.starts, batch.words, batch.counts, gamma, np.full(2, 0.5))
    bound.topics_bound(table)
    priors.found(table)
