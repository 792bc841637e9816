"""Topics by several machines, or several processes of one: an ``LDA`` that is fitted by workers under ``DPSVI``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from flockstep import check
from flockstep.backends.real.launch.launch import launch
from flockstep.budget import Budget
from flockstep.lda.core.training import usable_batch
from flockstep.lda.estimator import LDA
from flockstep.lda.nodes.dpsvi import DPSVI
from flockstep.lda.nodes.topic_workload import TopicDocuments
from flockstep.lda.progress import compile_loops
from flockstep.lda.settings import doubt_sizes, doubt_topics
from flockstep.trace import Row, Trace

EXCHANGE = DPSVI(patience=None)
"""A push every four batches, of which a worker does not wait for the reply. Who dies here does not come back."""


def fit_on_nodes(
    model: LDA,
    X: Any,
    *,
    nodes: int,
    strategy: DPSVI = EXCHANGE,
    eval_docs: Any = None,
    rows: int = 10,
    timeout: str | float = 300.0,
    on: str = "processes",
    callback: Callable[[Row], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Trace:
    """Fit a topic model in place by several workers, each with lock-free threads and documents of its own.

    All together go through ``model.max_iter`` times as many documents as there are; if a node is killed, the others
    take its part; if that is the server, each learns on by itself, and the model is the mean of theirs. Of a stream
    every node reads all and learns from its part. Under torchrun this runs one of the nodes it started, and the model
    is fitted where the server is.

    Args:
        model: The ``LDA`` to fit; its ``n_jobs`` are the threads of each node. ``learning_method``, ``warm_start`` and
            ``seed_words`` must be at their defaults.
        X: Documents by words: sparse or dense counts, or a stream (see ``flockstep.lda.data.streams``). No iterator.
        nodes: How many nodes, the server's included.
        strategy: How they exchange what they learn. By default a push every four steps, without waiting for the reply;
            a dead server is not waited for.
        eval_docs: Held-out documents; their perplexity is the loss of the trace. None: no looks.
        rows: About how many looks are taken at ``eval_docs``.
        timeout: How long any wait may last: seconds, or a text such as "2 min".
        on: "processes", or "threads" of this process.
        callback: Called with each look as it comes. None: none is.
        stop: Asked again and again; once it says True, nodes end early, and the model has what they learned. None:
            never.

    Returns:
        The trace: what every node did, and losses where there are ``eval_docs``.

    Example:
        if __name__ == "__main__":
            model = LDA(50, n_jobs=2)
            fit_on_nodes(model, counts, nodes=4)
    """
    check.whole("fit_on_nodes", "nodes", nodes)
    check.whole("fit_on_nodes", "rows", rows)
    if isinstance(X, Iterator):
        raise TypeError("fit_on_nodes needs documents that every node can read; an iterator can be read once, by one")
    model._validate_params()
    for name, usual in (("learning_method", "online"), ("warm_start", False), ("seed_words", None)):
        if getattr(model, name) != usual:
            raise ValueError(f"LDA.{name} is for one node: nodes know {usual!r} alone, got {getattr(model, name)!r}")
    seed = int(check_random_state(model.random_state).randint(2**31))
    workload = TopicDocuments(X, model=model, held_out=eval_docs, seed=seed)
    for name in ("feature_names_in_", "dtype_"):
        if hasattr(workload.model, name):
            setattr(model, name, getattr(workload.model, name))
    workers = nodes - (not strategy.server_trains)
    if workers < 1:
        raise ValueError("fit_on_nodes.nodes must be at least 2 where the server does not learn")
    threads = workload.batches_per_step
    batch = usable_batch(model.batch_size, threads=threads * workers, documents=workload.n_documents)
    steps = max(1, -(-model.max_iter * workload.n_documents // (batch * threads)))
    # Here, so that the nodes find compiled loops.
    compile_loops(shown=bool(model.verbose))
    trace = launch(
        strategy,
        workload,
        nodes=nodes,
        steps=Budget(steps=steps),
        # Looks nobody asked for cost time: the first and the last cannot be left out.
        record_every=max(1, steps // workers // rows) if eval_docs is not None else steps + 1,
        timeout=timeout,
        seed=seed,
        on=on,
        on_row=callback if eval_docs is not None else None,
        stop=stop,
    )
    learned = [x for rank, x in trace.models.items() if strategy.server_trains or rank != strategy.server]
    # Where the server died, what the others have had one beginning: their topics are the same ones.
    alone = strategy.server not in trace.models
    table = torch.stack(learned).mean(0) if alone else trace.models[strategy.server]
    workload.fill(model, table, priors_of=learned)
    words = workload.head.counts.sum(dtype=np.float64)
    doubt_sizes(topics=model.n_components, documents=workload.n_documents, words=words)
    if words:
        doubt_topics(model.topics_, model._prior.alpha, workload.head)
    _tell(
        model,
        trace,
        looked=eval_docs is not None,
        batch=batch,
        threads=threads,
        workers=workers,
        documents=workload.n_documents,
        stopped=stop is not None and stop(),
    )
    return trace


def _tell(
    model: LDA, trace: Trace, *, looked: bool, batch: int, threads: int, workers: int, documents: int, stopped: bool
) -> None:
    """What ``fit`` would have left in the estimator."""
    done = sum(report.steps for report in trace.nodes) * threads
    model.batch_size_, model.n_batch_iter_ = batch, done + 1
    model.n_iter_ = model.max_iter if not stopped else min(model.max_iter, done * batch // documents)
    model.training_seconds_ = max(report.seconds for report in trace.nodes)
    model.eval_scores_ = [
        {"documents": row.step * workers * threads * batch, "seconds": row.seconds, "perplexity": row.loss}
        for row in (trace.rows if looked else [])
    ]
