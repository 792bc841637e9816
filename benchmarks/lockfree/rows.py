"""Logistic regression on sparse rows: a9a, or as many random rows of its kind where that file is not at hand."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.lockfree.ways import Apart, Locked, Way
from flockstep.backends.real.crew.crew import gather
from flockstep.workloads.datasets import data_folder
from flockstep.workloads.labelled import libsvm_file
from flockstep.workloads.sparse import SparseLogistic

NAME = "benchmarks.lockfree"
SGD = partial(torch.optim.SGD, lr=0.01)
TIMEOUT = 120.0
HELD = 1000
"""Steps for which a lock is held: one for each step would mostly measure calls from Python."""


def a9a() -> tuple[str, Any]:
    """What it is, and the data."""
    try:
        return "a9a", libsvm_file(NAME, "a9a")
    except FileNotFoundError:
        rng = np.random.default_rng(0)
        columns = np.sort(rng.permuted(np.tile(np.arange(123), (32_561, 1)), axis=1)[:, :14], axis=1)
        rows = SimpleNamespace(
            indptr=14 * np.arange(32_562), indices=columns.ravel(), data=np.ones(columns.size), shape=(32_561, 123)
        )
        return "random rows like a9a", (rows, np.where(rng.random(32_561) < 0.25, 1, -1))


def newsgroups() -> Any:
    """Counts of 12,883 words in 18,846 posts, ten groups against the other ten; None where they are not at hand."""
    try:
        file = np.load(data_folder("20newsgroups") / "20news_bow.npz")
    except FileNotFoundError:
        return None
    counts = np.log1p(file["counts"].astype(np.float32))
    shape = (len(file["labels"]), 12_883)
    rows = SimpleNamespace(indptr=file["indptr"], indices=file["indices"], data=counts, shape=shape)
    return rows, np.where(file["labels"] < 10, -1, 1)


def ways(stack: ExitStack, workload: SparseLogistic) -> list[Way]:
    """Everything there is to compare, started; ``stack`` ends it."""

    def crew(workload: Any, threads: int) -> Any:
        it = gather(workload, workload.start(), SGD, threads=threads, seed=0, rank=0, timeout=TIMEOUT)
        stack.callback(it.close)
        return it

    one, two = crew(workload, 1), crew(workload, 2)
    locked, apart = crew(Locked(workload, threading.Lock(), HELD), 2), crew(Apart(workload), 2)
    return [
        Way.of_crew("1 thread", one, [1], over="1 thread"),
        Way.of_crew("2 threads, lock-free", two, [1, 1], over="1 thread"),
        Way.of_crew("2 threads, a lock", locked, [1, 1], over="1 thread"),
        Way.of_crew("1 process apart", apart, [1, 0], over="1 process apart"),
        Way.of_crew("2 processes apart", apart, [1, 1], over="1 process apart"),
    ]
