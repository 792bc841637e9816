"""What the settings of a topic model may be; what cannot come out well is refused, and what did not is said."""

from __future__ import annotations

import logging
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils._param_validation import Interval, StrOptions

from flockstep.lda.core.priors import MOST
from flockstep.lda.core.topics import Floats, Topics
from flockstep.lda.data.corpora import Corpus
from flockstep.lda.evaluate.completion import Completion

FOUND_BEST = {"vb": (0.5, 10.0, 100), "map": (0.6, 1.0, 5), "cvb0": (0.6, 1.0, 12)}
"""Learning decay, learning offset, rounds per document, for each objective: the best on held-out newsgroups."""

CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "objective": [StrOptions({"vb", "map", "cvb0"})],
    "doc_topic_prior": [None, StrOptions({"auto"}), "array-like", Interval(Real, 0, MOST, closed="right")],
    "topic_word_prior": [None, StrOptions({"auto"}), Interval(Real, 0, MOST, closed="right")],
    "learning_method": [StrOptions({"online", "batch"})],
    "batch_size": [None, Interval(Integral, 1, None, closed="left")],
    "learning_decay": [None, Interval(Real, 0, 1, closed="both")],
    "learning_offset": [None, Interval(Real, 1, None, closed="left")],
    "learning_delay": [Interval(Real, 0, None, closed="left")],
    "max_iter": [Interval(Integral, 0, None, closed="left")],
    "warm_start": ["boolean"],
    "seed_words": [None, list, tuple],
    "total_samples": [Interval(Real, 0, None, closed="neither")],
    "mean_change_tol": [Interval(Real, 0, None, closed="left")],
    "max_doc_update_iter": [None, Interval(Integral, 1, None, closed="left")],
    "evaluate_every": [None, Integral],
    "perp_tol": [Interval(Real, 0, None, closed="left")],
    "patience": [None, Interval(Integral, 1, None, closed="left")],
    "tolerance": [Interval(Real, 0, None, closed="left")],
    "n_jobs": [None, Integral],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


def found_best(
    objective: str, decay: float | None, offset: float | None, rounds: int | None
) -> tuple[float, float, int]:
    """What is given, and for the rest what was found best."""
    best = FOUND_BEST[objective]
    return (
        best[0] if decay is None else decay,
        best[1] if offset is None else offset,
        best[2] if rounds is None else rounds,
    )


log = logging.getLogger("flockstep")

MOST_WORDS = 1e9
"""Of one document. Sums of more come out wrong in single precision: with ten times as many, nothing was learned."""
_LOOKED_AT = 1000


def check_kind(X: Any, whom: str) -> None:
    """TypeError for texts and for gensim's bags of words, which scikit-learn would complain about in its own terms."""
    first = X[0] if isinstance(X, list | tuple) and X else None
    inner = first[0] if isinstance(first, list | tuple) and first else None
    if isinstance(first, str) or isinstance(inner, str):
        raise TypeError(
            f"LDA.{whom} takes counts, documents by words, and got texts\n"
            "  count them: sklearn.feature_extraction.text.CountVectorizer().fit_transform(texts)"
        )
    if isinstance(inner, tuple):
        raise TypeError(
            f"LDA.{whom} takes counts, documents by words, and got bags of (word, count)\n"
            "  gensim.matutils.corpus2csc(bags, num_terms=len(dictionary)).T has them as counts"
        )


def check_counts(X: Any, whom: str) -> None:
    """ValueError where a document is too long to be counted."""
    lengths = np.asarray(X.sum(axis=1)).ravel()
    longest = int(lengths.argmax()) if lengths.size else 0
    if lengths.size and lengths[longest] > MOST_WORDS:
        raise ValueError(
            f"LDA.{whom}: document {longest} has {lengths[longest]:.3g} words, and more than {MOST_WORDS:.0e} "
            "cannot be counted in single precision\n  divide all counts by the same number"
        )


def doubt_sizes(*, topics: int, documents: float, words: float) -> None:
    """Say in the log what cannot be learned from so little."""
    if not words:
        log.warning("the documents have no words at all: topics are what they were before, and perplexity is nan")
    elif topics > documents:
        log.warning("%d topics from %d documents: most topics will have nothing to be about", topics, documents)


def doubt_topics(topics: Topics, alpha: Floats, looked_at: Completion | Corpus) -> None:
    """Say in the log where topics foresee words no better than word frequencies alone."""
    completion = looked_at if isinstance(looked_at, Completion) else _completion(looked_at, topics.n_words)
    if completion is None:
        return
    with_topics = completion.of_topics(topics, alpha)
    without = completion.perplexity(lambda words: _frequencies(topics, words))
    if with_topics > without:
        log.warning(
            "these %d topics foresee words no better than word frequencies do (perplexity %.0f with them, %.0f "
            "without): documents may be too short or too few; fewer topics, more passes or another objective may help",
            topics.n_topics,
            with_topics,
            without,
        )


def _frequencies(topics: Topics, words: Any) -> Floats:
    total = topics.totals.sum() + topics.prior * topics.n_words
    return np.asarray((topics.counts(words).sum(1, keepdims=True) + topics.prior) / total, np.float32)


def _completion(corpus: Corpus, n_words: int) -> Completion | None:
    some = corpus.part(0, min(_LOOKED_AT, len(corpus)))
    if some.counts.sum() < 2:
        return None
    try:
        return Completion(sp.csr_array((some.counts, some.words, some.starts), shape=(len(some), n_words)))
    except ValueError:
        # The coin left no word to be foreseen.
        return None
