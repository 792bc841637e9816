"""20 Newsgroups in three parts: to learn from, to tune on, and to report on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from flockstep.lda.evaluate.completion import Completion
from flockstep.workloads.datasets import data_folder

_VALIDATION, _TEST = 1000, 2000
_SEEN = 2000
"""Documents of the test part that were looked at while settings were chosen: they report nothing."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Documents by words; the test part was in no way used to choose settings."""

    train: Any
    validation: Completion
    test: Completion


def newsgroups(most: int | None = None) -> Split:
    """The set's own training part less 1,000 documents to tune on; 2,000 of its test part, which is later in time."""
    file = np.load(data_folder("20newsgroups") / "20news_bow.npz")
    starts = file["indptr"]
    matrix = sp.csr_array((file["counts"].astype(np.float32), file["indices"].astype(np.int32), starts))
    rng, filled = np.random.default_rng(0), np.diff(starts) > 0
    learn = rng.permutation(np.flatnonzero(filled & (file["split"] == 0)))
    later = rng.permutation(np.flatnonzero(filled & (file["split"] == 1)))
    return Split(
        train=matrix[learn[_VALIDATION:][:most]],
        validation=Completion(matrix[learn[:_VALIDATION]]),
        test=Completion(matrix[later[_SEEN : _SEEN + _TEST]]),
    )
