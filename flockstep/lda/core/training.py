"""Batches to topics, by one thread or by several that share one table without a lock."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from flockstep.lda.core.learner import Batch, Learner, Rules, first_gamma
from flockstep.lda.core.priors import MixturePrior, WordPrior
from flockstep.lda.core.topics import Floats, Topics, Update

OnDocuments = Callable[[int], None]
"""Called with the number of documents of every batch that was folded in."""

_LOOK = 0.2
"""Seconds after which a thread that waits for others looks up: a signal may have come.

Python feels one between two steps of its own. One that comes after the last step before a wait, or that the system
gives to another thread, does not end the wait: without a look it would be felt when the others are done.
"""


class Recorder(Protocol):
    """Somebody who wants to know every update."""

    def record(self, update: Update) -> None:
        """Take the update in, and its arrays."""
        ...


class Schedule:
    """rho_t = (t^2 / (t + delay) + offset)^-decay, t from 1, each number given once.

    What topics are made of at first is to be forgotten soon: with a delay the clock runs slowly at the beginning, and
    stays behind by so many batches.
    """

    def __init__(self, *, decay: float, offset: float, delay: float = 0.0, done: int = 0) -> None:
        self._decay, self._offset, self._delay = decay, offset, delay
        self.done = done
        self._numbers = itertools.count(done + 1)

    def next(self) -> float:
        """The rate of the next batch."""
        self.done = number = next(self._numbers)
        return self._rate(number)

    def _rate(self, number: int) -> float:
        return float((number * number / (number + self._delay) + self._offset) ** -self._decay)


LARGE = 1024
"""Documents per update, where nobody says and nothing speaks for fewer."""
_SMALL, _PER_TOPIC = 256, 200


def fitting_batch(topics: int, length: float, *, drawn: bool) -> int:
    """Documents per update, where one thread learns by "cvb0" from documents of so many words, on average.

    Small batches bring more updates, and topics whose words go together better; but where a batch has few words for
    every topic, its topics are noise, unless they are drawn, from many documents. (Two threads would wait for each
    other at small batches.)
    """
    return _SMALL if drawn else int(min(max(_SMALL, _PER_TOPIC * topics / max(length, 1.0)), LARGE))


def usable_batch(batch_size: int | None, *, threads: int, documents: float) -> int:
    """``batch_size``, or less: batches under way at once must be at most a quarter of all documents.

    Beyond that, threads work on topics that change altogether while they look, and a corpus gives too few steps.
    """
    return max(1, min(LARGE if batch_size is None else batch_size, int(documents / (4 * threads))))


class Trainer:
    """Runs batches on a table of topics; scratch memory is kept from call to call."""

    def __init__(
        self,
        topics: Topics,
        rules: Rules,
        schedule: Schedule,
        *,
        threads: int = 1,
        prior: MixturePrior | None = None,
        word_prior: WordPrior | None = None,
    ) -> None:
        self.topics, self.schedule, self._prior, self._rules = topics, schedule, prior, rules
        self._word_prior = word_prior
        self._learners = [Learner(topics, rules, prior) for _ in range(threads)]
        self._telling = threading.Lock()

    @property
    def alpha(self) -> Floats | None:
        """The prior of documents' topics, where it is learned."""
        return None if self._prior is None else self._prior.alpha

    def run(
        self,
        batches: Iterable[Batch],
        *,
        of: float,
        on_documents: OnDocuments | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Learn from batches that each stand for ``of`` documents."""
        if len(self._learners) == 1:
            self._drain(self._learners[0], iter(batches), of, on_documents, recorder)
            return
        shared = _Shared(batches)
        with ThreadPoolExecutor(len(self._learners), thread_name_prefix="lda") as pool:
            try:
                # Inside: an interrupt while threads are started must stop those that run already.
                jobs = [pool.submit(self._drain, each, shared, of, on_documents, recorder) for each in self._learners]
                _await(jobs)
            finally:
                shared.stop()

    def _drain(
        self,
        learner: Learner,
        batches: Iterator[Batch],
        of: float,
        on_documents: OnDocuments | None,
        recorder: Recorder | None,
    ) -> None:
        for batch in batches:
            update = learner.learn(batch, rate=self.schedule.next(), of=of)
            self.topics.fold(update)
            self._seen(batch.chosen.size)
            if recorder is not None:
                recorder.record(update)
                learner.let_go(update)
            if on_documents is not None:
                with self._telling:
                    on_documents(batch.chosen.size)

    def _seen(self, documents: int) -> None:
        if self._word_prior is not None:
            self._word_prior.take(self.topics, documents, every=max(1.0, self._rules.prior_after))


class WholeTrainer(Trainer):
    """Takes batches that are the whole corpus: each replaces all that was known, as batch variational Bayes does.

    Documents begin with the same noise however many threads there are.
    """

    def run(
        self,
        batches: Iterable[Batch],
        *,
        of: float,
        on_documents: OnDocuments | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Learn from the corpus as often as it comes, every thread from its part of it."""
        for corpus in batches:
            self.schedule.next()
            gamma = np.empty((corpus.chosen.size, self.topics.n_topics), np.float32)
            first_gamma(gamma, corpus.seed)
            memory = np.empty_like(gamma)
            memory[corpus.chosen] = gamma
            parts = [part for part in np.array_split(corpus.chosen, len(self._learners)) if part.size]
            own = [replace(corpus, chosen=part, memory=memory) for part in parts]
            with ThreadPoolExecutor(len(own), thread_name_prefix="lda") as pool:
                pairs = zip(self._learners, own, strict=False)
                how = {"rate": 1.0, "documents": corpus.chosen.size}
                jobs = [pool.submit(learner.learn, part, of=part.chosen.size, **how) for learner, part in pairs]
                _await(jobs)
            if self._prior is not None:
                self._prior.take(memory, self._prior.alpha, after=self._rules.prior_after)
            for k, job in enumerate(jobs):
                # Only the first lets go of what was there.
                self.topics.fold(job.result() if k == 0 else replace(job.result(), log_decay=0.0))
            self._seen(corpus.chosen.size)
            if on_documents is not None:
                on_documents(corpus.chosen.size)


def _await(jobs: Sequence[Future[Any]]) -> None:
    """Until all are done or one failed, whose error this raises."""
    waiting = set(jobs)
    while waiting:
        done, waiting = wait(waiting, timeout=_LOOK, return_when=FIRST_EXCEPTION)
        for job in done:
            job.result()


class _Shared:
    """One iterator for several threads."""

    def __init__(self, items: Iterable[Batch]) -> None:
        self._items, self._turn, self._stopped = iter(items), threading.Lock(), False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        with self._turn:
            if self._stopped:
                raise StopIteration
            try:
                return next(self._items)
            except BaseException:
                # Also when reading failed: the thread that met it will tell, the others are to end.
                self._stopped = True
                raise

    def stop(self) -> None:
        """No more items."""
        self._stopped = True
