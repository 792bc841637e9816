"""``train``: a module, a loss and data, trained by a flock that is started for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flockstep.backends.real.launch.launch import launch
from flockstep.budget import Budget
from flockstep.node import OptimizerFactory
from flockstep.strategy import Strategy
from flockstep.trace import Row, Trace
from flockstep.workloads.supervised import Supervised


def train(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    data: Any,
    strategy: Strategy,
    *,
    nodes: int | None = None,
    steps: int | Budget = 100,
    batch: int = 32,
    optimizer: OptimizerFactory = partial(torch.optim.SGD, lr=0.1),
    validation: Any = None,
    on: str = "processes",
    record_every: int | None = None,
    timeout: str | float = 300.0,
    seed: int = 0,
    on_row: Callable[[Row], None] | None = None,
) -> Trace:
    """Train a module in place, without a loop: ``fs.train(model, loss, (x, y), fs.DPSGD(threads=2), nodes=2)``.

    ``loss(module, batch)`` is the mean loss of a batch, ``data`` a tuple of tensors with a row per example or a
    map-style dataset, dealt to the nodes at random. Nodes are started as ``launch`` starts them, and take steps on
    batches of their rows; a strategy with ``threads`` has a crew on each. In the end the model has the average of all
    nodes' parameters, or the server's where there is one; the trace has the loss on ``validation`` along the way.
    """
    workload = Supervised(module=model, loss=loss, data=data, validation=validation, batch=batch, seed=seed)
    trace = launch(
        strategy,
        workload,
        nodes=nodes,
        steps=steps,
        optimizer=optimizer,
        on=on,
        record_every=record_every,
        timeout=timeout,
        seed=seed,
        on_row=on_row,
    )
    server: int = getattr(strategy, "server", -1)
    workload.fill(model, trace.models.get(server, trace.model))
    return trace
