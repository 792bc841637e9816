"""What fitted topics say of documents: their mixtures, and the bound on their likelihood."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from flockstep.lda.core.bound import documents_bound, topics_bound
from flockstep.lda.core.learner import Batch, Learner, Rules
from flockstep.lda.core.topics import Floats, Topics
from flockstep.lda.data.corpora import Corpus

_CHUNK = 1024
"""Documents at a time, which bounds the memory for their words."""


def mixtures(topics: Topics, corpus: Corpus, rules: Rules, *, threads: int = 1) -> Floats:
    """Gamma of every document, begun at one: the same for a document wherever it stands."""
    gamma = np.ones((len(corpus), topics.n_topics), np.float32)
    pieces = iter([np.arange(first, min(first + _CHUNK, len(corpus))) for first in range(0, len(corpus), _CHUNK)])

    def work() -> None:
        learner = Learner(topics, rules)
        for chosen in pieces:
            learner.infer(
                Batch(starts=corpus.starts, words=corpus.words, counts=corpus.counts, chosen=chosen, memory=gamma)
            )

    if threads == 1:
        work()
        return gamma
    with ThreadPoolExecutor(threads, thread_name_prefix="lda") as pool:
        for job in [pool.submit(work) for _ in range(threads)]:
            job.result()
    return gamma


def likelihood_bound(topics: Topics, corpus: Corpus, rules: Rules, *, threads: int = 1, ratio: float = 1.0) -> float:
    """The variational bound; documents count ``ratio`` times, topics once."""
    total, alpha = 0.0, np.broadcast_to(np.float64(rules.alpha), topics.n_topics)
    for first in range(0, len(corpus), _CHUNK):
        part = corpus.part(first, min(first + _CHUNK, len(corpus)))
        gamma = mixtures(topics, part, rules, threads=threads)
        total += documents_bound(topics, part.starts, part.words, part.counts, gamma, alpha)
    return total * ratio + topics_bound(topics)


def bound_perplexity(topics: Topics, corpus: Corpus, rules: Rules, *, threads: int = 1, ratio: float = 1.0) -> float:
    """exp(-bound per word); nan where there are no words."""
    words = corpus.counts.sum(dtype=np.float64) * ratio
    if not words:
        return math.nan
    with np.errstate(over="ignore"):
        # Where there are next to no words, all of the topics' own part falls on them: infinite, then.
        return float(np.exp(-likelihood_bound(topics, corpus, rules, threads=threads, ratio=ratio) / words))
