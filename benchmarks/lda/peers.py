"""Other people's topic models: how long each trains, and the topics it ends with."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lda import settings


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run gave."""

    seconds: float
    """Of training alone: no reading, no conversion, no scoring."""
    passes: int
    topics: NDArray[Any]
    """Topics by words, positive."""


def scikit_learn(train: Any, topics: int, seed: int, passes: int = settings.PASSES["vb"], **other: Any) -> Trained:
    """scikit-learn's online variational Bayes, one job; documents shuffled before each pass, as ours are."""
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(
        topics, total_samples=train.shape[0], random_state=seed, **{**settings.VB, **other}
    )
    rng, seconds = np.random.default_rng(seed), 0.0
    for _ in range(passes):
        shuffled = train[rng.permutation(train.shape[0])]
        began = time.perf_counter()
        model.partial_fit(shuffled)
        seconds += time.perf_counter() - began
    return Trained(seconds=seconds, passes=passes, topics=model.components_)


def gensim(train: Any, topics: int, seed: int, passes: int = settings.PASSES["gensim"], **other: Any) -> Trained:
    """gensim's LdaMulticore: online variational Bayes in two worker processes."""
    from gensim.models import LdaMulticore

    rng = np.random.default_rng(seed)
    rows = train[rng.permutation(train.shape[0])]
    pairs = [
        list(zip(rows.indices[a:b].tolist(), rows.data[a:b].tolist(), strict=True))
        for a, b in zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    ]
    began = time.perf_counter()
    model = LdaMulticore(
        pairs,
        num_topics=topics,
        id2word={word: str(word) for word in range(train.shape[1])},
        workers=2,
        passes=passes,
        random_state=seed,
        eval_every=None,
        **{**settings.GENSIM, **other},
    )
    return Trained(seconds=time.perf_counter() - began, passes=passes, topics=model.get_topics())


def tomotopy(train: Any, topics: int, seed: int, passes: int = settings.ITERATIONS, **other: Any) -> Trained:
    """tomotopy: collapsed Gibbs sampling, two workers, priors re-estimated as it does by itself."""
    import tomotopy as tp

    model = tp.LDAModel(k=topics, seed=seed, **{**settings.TOMOTOPY, **other})
    for a, b in zip(train.indptr[:-1], train.indptr[1:], strict=True):
        model.add_doc([str(word) for word in np.repeat(train.indices[a:b], train.data[a:b].astype(int))])
    with warnings.catch_warnings():
        # That two workers give other numbers each time is known.
        warnings.simplefilter("ignore", RuntimeWarning)
        model.train(0)
        began = time.perf_counter()
        model.train(passes, workers=2)
        seconds = time.perf_counter() - began
    found = np.full((topics, train.shape[1]), 1e-9)
    known = np.array([int(word) for word in model.used_vocabs])
    for topic in range(topics):
        found[topic, known] += model.get_topic_word_dist(topic)
    return Trained(seconds=seconds, passes=passes, topics=found)


PEERS: dict[str, tuple[str, Callable[..., Trained]]] = {
    "scikit-learn online, 1 job": ("sklearn", scikit_learn),
    "gensim LdaMulticore, 2 workers": ("gensim", gensim),
    "tomotopy Gibbs, 2 workers": ("tomotopy", tomotopy),
}


def installed() -> tuple[dict[str, Callable[..., Trained]], list[str]]:
    """The peers that are here, and the names of those that are not."""
    here = {name: train for name, (module, train) in PEERS.items() if find_spec(module)}
    return here, [name for name in PEERS if name not in here]
