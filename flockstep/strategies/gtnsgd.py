"""Normalised SGD with momentum and gradient tracking: for deep nets whose noise has heavy tails.

    v_i <- beta v_i + (1 - beta) g_i
    y_i <- sum_j w_ij (y_j + v_j - v_j before)                        y_i follows the mean of all v
    x_i <- sum_j w_ij (x_j - eta y_j / ||y_j||)                       a step has the length eta, whatever the noise

eta is the optimizer's learning rate. The sum of all y is the sum of all v, exactly, if the weights are doubly
stochastic: nodes with different data still go the common way. A gradient that is not finite leaves v as it was.

Yu, Jakovetic, Kar: decentralized nonconvex optimization under heavy-tailed noise: normalization and optimal
convergence, 2025, arXiv 2505.03736.

Sends   two vectors to each neighbour per step
Waits   for its neighbours, twice per step
Keeps   v and y
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from flockstep import check
from flockstep.averages.averages import Mixed
from flockstep.codecs.codec import Codec
from flockstep.codecs.raw import Raw
from flockstep.node import Node
from flockstep.parts.suitability import MODELS, codec_for
from flockstep.topologies import Complete, Topology


@dataclass(frozen=True, kw_only=True)
class GTNSGDm:
    """GT-NSGDm: steps of one length along a tracked momentum: for deep nets whose noise has heavy tails.

        v_i <- beta v_i + (1 - beta) g_i
        y_i <- sum_j w_ij (y_j + v_j - v_j before)
        x_i <- sum_j w_ij (x_j - eta y_j / ||y_j||)

    w_ij are the weights of the topology, eta is the optimizer's learning rate and, with plain SGD, the length of a
    step. With ``Complete()`` every node ends with the same model, else with one of its own.

    Yu, Jakovetic, Kar: decentralized nonconvex optimization under heavy-tailed noise: normalization and optimal
    convergence, 2025, arXiv 2505.03736.

    Args:
        beta: Momentum of the gradient, from 0 to below 1.
        topology: Which nodes are neighbours (see ``fs.topologies``). By default all of them.
        codec: How vectors become bytes (see ``fs.codecs``). By default in full. It carries models and their like: not
            ``TopK``.

    Example:
        with fs.join(model, optimizer, fs.GTNSGDm(beta=0.9)):
            train(model, optimizer)  # your own loop
    """

    row_wise: ClassVar[bool] = True

    beta: float = 0.9
    topology: Topology = Complete()
    codec: Codec = Raw()

    def __post_init__(self) -> None:
        if check.fraction(self, "beta", self.beta) == 1:
            raise ValueError("GTNSGDm.beta must be below 1, got 1: v would stay 0")
        check.has(self, "topology", self.topology, "peers", "weights", kind="a topology such as Ring()")
        codec_for(self, self.codec, MODELS, such_as="Cast()", instead="Modular(bits=8), Stochastic(bits=8) or Cast()")

    async def run(self, node: Node) -> None:
        """Momentum, tracking, a step of one length, mixing."""
        x = node.params
        v, y = node.keep("v", torch.zeros_like(x)), node.keep("y", torch.zeros_like(x))
        mixed = Mixed(topology=self.topology, codec=self.codec)
        mix_y, mix_x = mixed.start(node, "tracker"), mixed.start(node, "model")
        async for _ in node.steps():
            g = await node.gradient(x)
            change = torch.zeros_like(g) if node.refused else (g - v).mul_(1 - self.beta)
            v.add_(change)
            y.copy_(await mix_y(y + change))
            await node.step(y / node.length(y).clamp(min=torch.finfo(y.dtype).tiny))
            x.copy_(await mix_x(x))
