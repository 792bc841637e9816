"""A corpus larger than one would hold, streamed through in a process of its own whose memory is measured."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from flockstep.lda import LDA
from flockstep.lda.data.streams import Blocks

WORDS, TOPICS, BLOCK = 100_000, 200, 4096
_LENGTH, _MIXED = 120, 3


def synthetic(documents: int) -> Iterator[Any]:
    """Documents of 120 tokens from three of 200 topics, each of them Zipf's law over words in an order of its own."""
    odds = 1 / np.arange(1, WORDS + 1)
    odds = np.cumsum(odds / odds.sum())
    for first in range(0, documents, BLOCK):
        count, rng = min(BLOCK, documents - first), np.random.default_rng(first)
        mixed = rng.integers(TOPICS, size=(count, _MIXED))
        topic = mixed[np.arange(count)[:, None], rng.integers(_MIXED, size=(count, _LENGTH))]
        rank = np.searchsorted(odds, rng.random((count, _LENGTH)))
        # 7919 shares no factor with the number of words, so each topic's order is one of all words.
        words = (rank * 7919 + topic * 499) % WORDS
        rows = np.repeat(np.arange(count), _LENGTH)
        yield sp.csr_array((np.ones(rows.size, np.float32), (rows, words.ravel())), shape=(count, WORDS))


def streamed(documents: int) -> dict[str, float]:
    """One pass; peak memory of the whole process."""
    began = time.perf_counter()
    model = LDA(TOPICS, objective="map", max_iter=1, n_jobs=2, random_state=0)
    model.fit(Blocks(lambda: synthetic(documents), n_documents=documents))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_gib": peak / 2**20, "seconds": time.perf_counter() - began, "bound": model.bound_}


def in_a_child(documents: int) -> dict[str, float]:
    """The same in a process that does nothing else."""
    call = [sys.executable, "-m", "benchmarks.lda.memory", str(documents)]
    done = subprocess.run(call, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    print(json.dumps(streamed(int(sys.argv[1]))))
