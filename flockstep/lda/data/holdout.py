"""Documents to learn from, and others to score with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from flockstep import check
from flockstep.lda.data.streams import Stream


def split(corpus: Any, share: float, *, seed: int = 0) -> tuple[Any, Any]:
    """A random share of the documents apart, in memory: (the rest, those), or all of them and None for a share of 0.

    A stream stays a stream, which leaves them out on every pass; the same seed leaves out the same ones.
    """
    if check.fraction("split", "share", share) == 1:
        raise ValueError("split.share must leave documents to learn from, got 1")
    if share == 0:
        return corpus, None
    if isinstance(corpus, Stream):
        rest = _Rest(corpus, share, seed)
        return rest, sparse.vstack([block[chosen] for block, chosen in rest.drawn()], format="csr")
    documents = corpus.shape[0]
    count = max(1, round(share * documents))
    if count >= documents:
        raise ValueError(f"split.share must leave documents to learn from, got {share} of {documents}")
    order = np.random.default_rng(seed).permutation(documents)
    return corpus[np.sort(order[count:])], corpus[np.sort(order[:count])]


class _Rest(Stream):
    """A stream without some documents."""

    def __init__(self, whole: Stream, share: float, seed: int) -> None:
        self._whole, self._share, self._seed = whole, share, seed
        if not whole.again:
            raise ValueError("split.corpus must be a stream that can be read again, to find the documents held out")
        self.n_features = whole.n_features
        self.n_documents = sum(int((~chosen).sum()) for _, chosen in self.drawn())
        if not self.n_documents:
            raise ValueError(f"split.share must leave documents to learn from, got {share}")

    def drawn(self) -> Iterator[tuple[Any, Any]]:
        """Every block, and which of its documents are held out."""
        rng = np.random.default_rng(self._seed)
        return ((block, rng.random(block.shape[0]) < self._share) for block in self._whole)

    def __iter__(self) -> Iterator[Any]:
        return (block[~chosen] for block, chosen in self.drawn() if not chosen.all())
