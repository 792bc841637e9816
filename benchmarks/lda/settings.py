"""The settings of everybody, as ``python -m benchmarks.lda --tune`` found them best on the validation part."""

from __future__ import annotations

from typing import Any

VB: dict[str, Any] = {
    "doc_topic_prior": 0.05,
    "topic_word_prior": 0.02,
    "batch_size": 1024,
    "learning_offset": 10.0,
    "learning_decay": 0.5,
}
"""scikit-learn's too: it is the same algorithm, and tuning it by ours takes a twentieth of the time."""

MAP: dict[str, Any] = {
    "objective": "map",
    "doc_topic_prior": 0.1,
    "topic_word_prior": 0.02,
    "batch_size": 1024,
    "learning_offset": 1.0,
    "learning_decay": 0.6,
}

CVB0: dict[str, Any] = {
    "objective": "cvb0",
    "doc_topic_prior": 0.03,
    "topic_word_prior": 0.02,
    "batch_size": 512,
    "learning_offset": 1.0,
    "learning_decay": 0.5,
    "mean_change_tol": 3e-3,
}

GENSIM: dict[str, Any] = {"alpha": 0.05, "eta": 0.02, "chunksize": 1024, "offset": 1.0, "decay": 0.5}

TOMOTOPY: dict[str, Any] = {"alpha": 0.03, "eta": 0.05}

PASSES = {"vb": 5, "map": 10, "cvb0": 10, "gensim": 5}
ITERATIONS = 150
"""Of tomotopy, which are passes too."""
