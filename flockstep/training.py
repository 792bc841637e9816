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
    """Train a module in place, without a loop of your own.

    Nodes are started as ``launch`` starts them, and take steps on batches of their own rows; a strategy with
    ``threads`` has as many on each node. In the end the model has the average of all nodes' parameters, or the server's
    where there is one.

    Args:
        model: The module to train. It must have no float buffers, such as batch-norm statistics.
        loss: ``loss(module, batch)``: the mean loss of a batch, as a scalar tensor.
        data: A tuple of tensors with a row per example, or a map-style dataset; dealt to the nodes at random.
        strategy: What nodes exchange, and when: ``fs.LocalSGD(period=8)``.
        nodes: How many nodes to start on this machine. None: those that torchrun, srun or mpirun started.
        steps: Steps of each node, or a ``Budget`` of all nodes together.
        batch: Rows in a batch of one node, drawn with replacement.
        optimizer: Makes a node's torch optimizer from a list of tensors: ``functools.partial(torch.optim.AdamW,
            lr=1e-3)``. By default SGD with a rate of 0.1.
        validation: What the trace's losses are measured on, of the same kind as ``data``; at most the first 4,096 rows.
            None: ``data``.
        on: "processes", or "threads" of this process.
        record_every: Steps between two records of the loss of the average model. None: about 20 records.
        timeout: How long any wait may last: seconds, or a text such as "2 min".
        seed: Seed of batches, of the strategy's and its codecs' random numbers, and of who gets which rows.
        on_row: Called with each record as it comes.

    Returns:
        The trace: losses, bytes and seconds of every node.

    Example:
        def loss(module, batch):
            inputs, targets = batch
            return torch.nn.functional.mse_loss(module(inputs), targets)

        if __name__ == "__main__":
            trace = fs.train(model, loss, (inputs, targets), fs.DPSGD(threads=2), nodes=2, steps=1000)
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
