"""Topics as a workload for ``DPSVI``: documents dealt out to nodes, each with a table of topics of its own.

A node's vector is its table: pseudo-counts of words by topics without the prior, as they were last written; after them
for each word the logarithm of what they have decayed since; and last the priors, which every node learns from its own
documents: of each topic in documents, and one of words in topics. A step learns from one batch, or with ``n_jobs``
threads from one batch each, and writes into the vector itself; there is no gradient to add.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Tensor

from flockstep import check
from flockstep.lda.core.learner import Batch
from flockstep.lda.core.topics import Floats, Topics, Update, Words
from flockstep.lda.core.training import Recorder, Schedule, Trainer, usable_batch
from flockstep.lda.data.corpora import Corpus
from flockstep.lda.data.streams import Stream
from flockstep.lda.estimator import LDA
from flockstep.lda.evaluate.completion import Completion

_SEEN_SAMPLE = 1000


class CommonSchedule(Schedule):
    """rho_t of one worker of several, where t is of all their batches together, as far as this one knows."""

    def __init__(self, *, decay: float, offset: float, delay: float = 0.0) -> None:
        super().__init__(decay=decay, offset=offset, delay=delay)
        self.learn(0, workers=1)

    @classmethod
    def like(cls, plain: Schedule) -> CommonSchedule:
        """With the rates of a schedule of one worker alone."""
        return cls(decay=plain._decay, offset=plain._offset, delay=plain._delay)

    def learn(self, done: int, *, workers: int, place: int = 0) -> None:
        """All together have done so many batches. Until it is told more, workers take turns, each at its place."""
        self._known, self._workers = done + place, workers
        self._numbers = itertools.count()

    def next(self) -> float:
        """The rate of the next batch."""
        self.done = number = self._known + self._workers * next(self._numbers) + 1
        return self._rate(number)


class TopicDocuments:
    """Documents as a workload for ``DPSVI``: dealt out to nodes, each with a table of topics of its own.

    Its loss is the document-completion perplexity of held-out documents. Every node reads all of a stream, block by
    block, and keeps every n-th document: it has to lie where each can read.

    Args:
        documents: Documents by words: sparse or dense counts, or a stream (see ``flockstep.lda.data.streams``) that can
            be read again and knows its length.
        model: An ``LDA`` that need not be fitted: its settings are used, but for ``max_iter`` and what concerns looks.
            A run has as many steps as it is given.
        held_out: Documents that the loss is measured on. None: the first thousand of ``documents``.
        seed: Seed of the first table, and of who gets which documents.

    Example:
        if __name__ == "__main__":
            trace = fs.launch(DPSVI(), TopicDocuments(counts, model=LDA(20)), nodes=2, steps=100)
    """

    def __init__(self, documents: Any, *, model: LDA, held_out: Any = None, seed: int = 0) -> None:
        if not isinstance(model, LDA):
            raise TypeError(f"TopicDocuments.model must be an LDA(...), got {type(model).__name__}")
        self.seed = check.whole(self, "seed", seed, at_least=0)
        self.model = clone(model)
        self._stream = documents if isinstance(documents, Stream) else None
        if self._stream is not None and (self._stream.n_documents is None or not self._stream.again):
            raise ValueError("TopicDocuments.documents must be a stream that can be read again and knows its length")
        counts = self.model._counts(documents if self._stream is None else next(iter(documents)), "fit", reset=True)
        self.model._set_priors()
        self.head = Corpus.of(counts)
        """All documents, or the first ones of a stream."""
        self.n_words = int(counts.shape[1])
        self.n_documents = len(self.head) if self._stream is None else int(self._stream.n_documents or 0)
        """Of all nodes together: what every batch stands for."""
        self.n_topics = int(model.n_components)
        self._threads: int = self.model._threads
        if held_out is None:
            held_out = counts[: min(_SEEN_SAMPLE, counts.shape[0])]
        self._completion = held_out if isinstance(held_out, Completion) else Completion(held_out)
        if (found := self._completion.n_words) != self.n_words:
            raise ValueError(f"TopicDocuments.held_out must have {self.n_words} columns, one per word, got {found}")
        self._part, self._parts = 0, 1
        self._own: Corpus | None = None
        self._trainer: Trainer | None = None
        self._batches: Iterator[Batch] | None = None
        self._x: NDArray[Any] = np.empty(0, np.float32)
        self.recorder: Recorder | None = None
        """Who is told of every update of this node's own batches."""

    @property
    def batches_per_step(self) -> int:
        """One for each thread."""
        return self._threads

    @property
    def batch_size(self) -> int:
        """Documents in a batch: fewer than asked for where all batches under way would be over a quarter of all."""
        return usable_batch(self.model.batch_size, threads=self._threads * self._parts, documents=self.n_documents)

    def weight(self, log_decay: float, batches: int) -> float:
        """What one word of a document adds to the table, on average, in an update of so many batches."""
        return -math.expm1(log_decay) * self.n_documents / (max(1, batches) * self.batch_size)

    # As a workload ------------------------------------------------------------------------------------------------

    def start(self) -> Tensor:
        """Noise, the same for one seed."""
        eta, rng = self.model._word_prior.first, np.random.default_rng(self.seed)
        rows = Topics.noisy(self.n_words, self.n_topics, prior=eta, objective="vb", rng=rng).rows
        parts = rows.ravel(), np.zeros(self.n_words, np.float32), self.model._prior.alpha, [np.float32(eta)]
        return torch.from_numpy(np.concatenate(parts))

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Learn from the next batches, in ``x`` itself; nothing, to be added."""
        trainer = self.work_on(x)
        if self._batches is None:
            self._batches = self._endless(rng)
        trainer.run(itertools.islice(self._batches, self._threads), of=self.n_documents, recorder=self.recorder)
        self._tell_ages()
        return torch.zeros(1).expand(x.numel())

    def loss(self, x: Tensor) -> float:
        """Perplexity of held-out documents. Of an average of nodes it is that of nearly their average."""
        rows, aged, alpha, (eta,) = self._split(x.numpy())
        factors = np.exp(aged)
        totals = (_sums(rows, factors) + float(eta) * self.n_words).astype(np.float32)

        def probabilities(words: Words) -> Floats:
            return np.asarray((rows[words] * factors[words, None] + eta) / totals, np.float32)

        return self._completion.perplexity(probabilities, alpha)

    def shard(self, rank: int, size: int) -> Self:
        """Documents dealt at random, and a table of topics of its own."""
        twin = copy.copy(self)
        twin.deal(rank, size)
        return twin

    # For the strategy -----------------------------------------------------------------------------------------------

    def deal(self, part: int, parts: int) -> None:
        """Learn from this part of the documents; before the first step."""
        if parts > self.n_documents:
            raise ValueError(f"TopicDocuments has {self.n_documents} documents, too few for {parts} nodes")
        self._part, self._parts, self._own = part, parts, None
        # Topics belong to a node: settings are shared, the object that holds both is not.
        self.model = copy.copy(self.model)
        self.model._prior = copy.deepcopy(self.model._prior)
        self.model._word_prior = copy.deepcopy(self.model._word_prior)
        self._trainer = self._batches = self.recorder = None

    def work_on(self, x: Tensor) -> Trainer:
        """Let a vector be the table that is learned in."""
        if self._trainer is None or self._x.ctypes.data != x.data_ptr():
            self._x = x.numpy()
            rows, aged, alpha, (eta,) = self._split(self._x)
            self.model._prior.alpha = alpha.copy()
            self.model.topics_ = Topics(
                rows, prior=float(eta), objective=self.model.objective, totals=_sums(rows, np.exp(aged))
            )
            # Nothing has decayed yet in a vector that somebody begins with, unless it is another node's.
            self.model.topics_.stamps[:] = -aged
            self.model.n_batch_iter_ = 1
            trainer = self._trainer = self.model._trainer(self.n_documents / self._parts)
            trainer.schedule = CommonSchedule.like(trainer.schedule)
        return self._trainer

    @property
    def topics(self) -> Topics:
        """The table that is learned in."""
        found: Topics = self.model.topics_
        return found

    def learn_number(self, done: int, *, workers: int) -> None:
        """All workers together have done so many batches."""
        if self._trainer is not None and isinstance(self._trainer.schedule, CommonSchedule):
            self._trainer.schedule.learn(done, workers=workers, place=self._part)

    def fold(self, update: Update) -> None:
        """Take in what others have learned; between two batches of this node."""
        self.topics.fold(update)
        self._tell_ages()

    def settle(self) -> None:
        """Let the vector hold the pseudo-counts themselves."""
        self.topics.settle()
        self._tell_ages()

    def fill(self, model: LDA, x: Tensor, *, priors_of: Sequence[Tensor] = ()) -> None:
        """Make a vector's topics those of an estimator; each node has priors of its own, and it gets their means."""
        rows, aged, _, _ = self._split(x.numpy())
        model.n_features_in_ = self.n_words
        model._set_priors()
        alphas, etas = zip(*(self._split(each.numpy())[2:] for each in priors_of or [x]), strict=True)
        model._prior.alpha = np.mean(alphas, axis=0)
        model.topics_ = Topics(rows * np.exp(aged)[:, None], prior=float(np.mean(etas)), objective=model.objective)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None, "_batches": None, "recorder": None, "_x": np.empty(0, np.float32)}

    def _split(self, x: NDArray[Any]) -> tuple[Floats, Floats, Floats, Floats]:
        """Pseudo-counts, logarithms of their decay, alpha, eta."""
        cut = self.n_words * self.n_topics
        after = cut + self.n_words
        return x[:cut].reshape(self.n_words, self.n_topics), x[cut:after], x[after:-1], x[-1:]

    def _tell_ages(self) -> None:
        _, aged, alpha, eta = self._split(self._x)
        aged[:] = self.topics.log_decay - self.topics.stamps
        alpha[:], eta[:] = self.model._prior.alpha, self.topics.prior

    def _endless(self, rng: np.random.Generator) -> Iterator[Batch]:
        while True:
            for piece in self._dealt():
                yield from piece.batches(self.batch_size, rng)

    def _dealt(self) -> Iterator[Corpus]:
        """This node's documents, once."""
        if self._stream is not None:
            yield from self._read()
            return
        if self._own is None:
            order = np.random.default_rng(self.seed).permutation(self.n_documents)
            self._own = self.head if self._parts == 1 else self.head.rows(np.sort(order[self._part :: self._parts]))
        yield self._own

    def _read(self) -> Iterator[Corpus]:
        passed = 0
        for block in self._stream or ():
            documents = Corpus.of(self.model._counts(block, "fit", reset=False))
            yield documents.rows(np.arange((self._part - passed) % self._parts, len(documents), self._parts))
            passed += len(documents)


def _sums(rows: Floats, factors: Floats) -> NDArray[np.float64]:
    """Over words, in double precision but without a second table."""
    return np.asarray(np.einsum("w,wk->k", factors, rows, dtype=np.float64))
