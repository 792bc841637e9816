"""Our runs: perplexity along the way, documents per second, and what two threads are worth."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import scipy.sparse as sp

from benchmarks.lda import settings
from flockstep.lda import LDA
from flockstep.lda.evaluate.completion import Completion

Curve = list[tuple[float, float]]
"""(seconds of training, perplexity), looks left out of the seconds."""


def model(topics: int, seed: int, objective: str, threads: int, **other: Any) -> LDA:
    """Ours with the settings found on the validation part."""
    chosen = {"vb": settings.VB, "map": settings.MAP, "cvb0": settings.CVB0}[objective]
    passes = settings.PASSES[objective]
    settled = {"objective": objective, "max_iter": passes, **chosen, **other}
    return LDA(topics, random_state=seed, n_jobs=threads, **settled)


def curve(train: Any, held_out: Completion, made: LDA) -> Curve:
    """Train and look twice a pass."""
    scores = made.fit(train, eval_docs=held_out, eval_docs_every=max(1, train.shape[0] // 2)).eval_scores_
    return [(score["seconds"], score["perplexity"]) for score in scores]


def seconds_to(target: float, points: Curve) -> float | None:
    """When a curve first was at or below; None if it never was."""
    return next((seconds for seconds, perplexity in points if perplexity <= target), None)


def pace(train: Any, trained: LDA, threads: int) -> float:
    """Documents per second on topics that were trained already; at the start, work per document varies."""
    made = copy.deepcopy(trained).set_params(n_jobs=threads, total_samples=train.shape[0])
    many = sp.vstack([train] * 4, format="csr")
    began = time.perf_counter()
    made.partial_fit(many)
    return float(many.shape[0] / (time.perf_counter() - began))


def compile_seconds() -> float:
    """What the first use on a machine takes, once: in a process that finds no compiled loops."""
    with tempfile.TemporaryDirectory() as empty:
        call = [
            sys.executable,
            "-c",
            "from flockstep.lda.progress import compile_loops; print(compile_loops(shown=False))",
        ]
        environment = {**os.environ, "NUMBA_CACHE_DIR": empty}
        done = subprocess.run(call, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.splitlines()[-1])
