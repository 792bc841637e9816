"""Passes over a corpus, in memory or in a stream, with a score on the way and an end when it stands still."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from flockstep.lda.core.learner import Batch
from flockstep.lda.core.training import Trainer
from flockstep.lda.progress import Watch

Asked = Callable[[], bool]
"""Whether somebody asked for an early end; called before every batch, by whichever thread is to take it."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A look at documents during training, held out or not."""

    documents: int
    """Documents learned from so far."""
    seconds: float
    """Spent on learning so far, looks left out."""
    perplexity: float


class Patience:
    """Says when a score has stopped falling: so many looks in a row that gained less than ``tolerance`` of the best."""

    def __init__(self, looks: int | None, tolerance: float) -> None:
        self._looks, self._tolerance = looks, tolerance
        self._best, self._idle = np.inf, 0

    def over(self, perplexity: float) -> bool:
        """Whether this one was the last."""
        self._idle = 0 if perplexity < self._best * (1 - self._tolerance) else self._idle + 1
        self._best = min(self._best, perplexity)
        return self._looks is not None and self._idle >= self._looks


class Standstill:
    """Says when two looks in a row differ by less than ``tolerance``, as scikit-learn has it."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance, self._last = tolerance, np.inf

    def over(self, perplexity: float) -> bool:
        """Whether this one was the last."""
        before, self._last = self._last, perplexity
        return bool(abs(before - perplexity) < self._tolerance)


@dataclass(frozen=True, kw_only=True)
class Looks:
    """What to look at on the way, how often, and when to have seen enough."""

    score: Callable[[Trainer], float] | None
    documents: int | None = None
    """Between looks; None counts passes instead."""
    passes: int = 1
    """Between looks."""
    over: Callable[[float], bool] = lambda perplexity: False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a training."""

    passes: int
    """Through all documents; one that was stopped does not count."""
    seconds: float
    """Spent on learning."""
    scores: list[Score]
    stopped: bool
    """Whether somebody asked for an early end."""


def run_passes(
    trainer: Trainer,
    passes: Iterator[Iterator[Batch]],
    *,
    of: float,
    looks: Looks,
    watch: Watch,
    stop: Asked | None = None,
) -> Outcome:
    """Learn from each pass, until there are no more, the score stands still, or ``stop`` says yes before a batch."""
    scores: list[Score] = []
    spent, made, stopped = 0.0, 0, False

    def counted() -> Iterator[Iterator[Batch]]:
        nonlocal made
        for batches in passes:
            made += 1
            yield batches

    def wanted(batches: Iterator[Batch]) -> Iterator[Batch]:
        nonlocal stopped
        for batch in batches:
            stopped = stopped or (stop is not None and stop())
            if stopped:
                return
            yield batch

    # In one go where nobody looks: threads need not wait for each other at the end of a pass then.
    pieces = _parts(counted(), looks) if looks.score else iter([itertools.chain.from_iterable(counted())])
    for piece in pieces:
        began = time.perf_counter()
        trainer.run(wanted(piece), of=of, on_documents=watch.on_documents)
        spent += time.perf_counter() - began
        if stopped:
            made -= 1
            break
        if looks.score is None:
            continue
        perplexity = looks.score(trainer)
        scores.append(Score(documents=watch.done, seconds=spent, perplexity=perplexity))
        watch.scored(perplexity)
        if looks.over(perplexity):
            break
    return Outcome(passes=made, seconds=spent, scores=scores, stopped=stopped)


def _parts(passes: Iterator[Iterator[Batch]], looks: Looks) -> Iterator[Iterator[Batch]]:
    """The batches, cut after so many documents of a pass or so many passes."""
    for batches in passes:
        if looks.documents is None:
            yield itertools.chain(batches, itertools.chain.from_iterable(itertools.islice(passes, looks.passes - 1)))
            continue
        for head in batches:
            yield itertools.chain([head], _up_to(batches, looks.documents - head.chosen.size))


def _up_to(batches: Iterator[Batch], documents: int) -> Iterator[Batch]:
    while documents > 0 and (batch := next(batches, None)) is not None:
        documents -= batch.chosen.size
        yield batch
