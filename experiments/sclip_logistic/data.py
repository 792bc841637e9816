"""a9a and w8a: rows to train on, sorted by label over the nodes, and rows to be judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from experiments.logistic import minimiser
from flockstep.workloads.convex import Logistic
from flockstep.workloads.datasets import data_folder, read_libsvm

HELD_OUT = 0.2
L2 = 1e-4
Rows = tuple[NDArray[Any], NDArray[Any]]
"""Features and labels."""


@dataclass(frozen=True)
class Source:
    """Where rows come from, and how strong the noise is."""

    train: str
    test: str | None
    """A file of its own; None holds out a fifth."""
    scale: float
    """Of the noise: about the root mean square of a coordinate of the nodes' gradients at the start."""


SOURCES = {"a9a": Source("a9a", "a9a.t", 0.1), "w8a": Source("w8a", None, 0.04)}


class Judged(Logistic):
    """Trains on some rows with labels sorted over the nodes; its ``loss`` is that of other rows, unregularised."""

    def __init__(self, train: Rows, test: Rows) -> None:
        super().__init__(data=train, heterogeneity=1.0, l2=L2)
        self._test = Logistic(data=test, l2=0.0)

    def loss(self, x: Tensor) -> float:
        """The mean logistic loss over the test rows."""
        return self._test.loss(x)

    def test_accuracy(self, x: Tensor) -> float:
        """The fraction of the test rows on the right side."""
        return self._test.accuracy(x)

    def training_loss(self, x: Tensor) -> float:
        """The regularised loss over all rows to train on."""
        return super().loss(x)

    def least(self) -> Tensor:
        """Where the training loss is least: what a run without noise would come to, if it never ended."""
        return minimiser(self._signed, L2).to(self._signed.dtype)


def load(name: str) -> Judged:
    """One data set; w8a's files have no test rows, so a fifth is held out, always the same."""
    source, folder = SOURCES[name], data_folder("libsvm")
    features, labels = read_libsvm(folder / f"{source.train}.gz")
    if source.test is not None:
        return Judged((features, labels), read_libsvm(folder / f"{source.test}.gz", features=features.shape[1]))
    order = np.random.default_rng(0).permutation(len(labels))
    out, kept = np.split(order, [round(HELD_OUT * len(labels))])
    return Judged((features[kept], labels[kept]), (features[out], labels[out]))
