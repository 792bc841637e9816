"""Smoothed clipping with error feedback: for convex problems whose noise has a mean, and no variance.

    Psi_t(y) = phi_t y / sqrt(y^2 + eps_t)            by coordinate;  phi_t = c_phi (t+1)^-1/2,  eps_t = tau (t+1)^3/5
    m_i <- beta_t m_i + (1 - beta_t) Psi_t(g_i - m_i)                 beta_t = c_beta (t+1)^-1/2

SClipEF          x <- x - eta_t mean_i m_i                            eta_t = eta (t+1)^-1/5
SClipEFNetwork   x_i <- sum_j w_ij (x_j - eta_t m_j)                  the first is its W = 11'/n

eta is the optimizer's learning rate, c_eta in the paper. m_i is node i's memory of its own gradient, so that only what
is new in it is clipped; with these schedules m_i becomes a small part of g_i, and what takes the bias away is that
eps_t grows until little is clipped. t counts the steps of the whole run: a resumed one goes on where it was.

Yu, Jakovetic, Kar: smoothed gradient clipping and error feedback for decentralized optimization under symmetric
heavy-tailed noise, SIAM J. Optim. 2026, arXiv 2310.16920.

Sends   one vector per step (SClipEF); one model to each neighbour per step (SClipEFNetwork)
Waits   for every node (SClipEF) or for its neighbours (SClipEFNetwork), every step
Keeps   m
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.averages.averages import Exact, Mixed
from flockstep.clips import SmoothClip
from flockstep.codecs.codec import Codec
from flockstep.codecs.raw import Raw
from flockstep.node import Node
from flockstep.parts.suitability import MODELS, codec_for
from flockstep.strategy import Average
from flockstep.topologies import Ring, Topology


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """What both have: how a node's memory of its gradient follows the gradient. Each says what its fields mean."""

    clip: SmoothClip = SmoothClip()
    c_beta: float = 0.9
    beta_power: float = 0.5
    eta_power: float = 0.2

    def __post_init__(self) -> None:
        check.has(self, "clip", self.clip, "__call__", kind="a clip such as SmoothClip()")
        if check.fraction(self, "c_beta", self.c_beta) == 1:
            raise ValueError("SClipEF.c_beta must be below 1, got 1: m would stay 0 at the first step")
        check.not_negative(self, "beta_power", self.beta_power)
        check.not_negative(self, "eta_power", self.eta_power)

    def start(self, node: Node) -> Tensor:
        """A memory that knows nothing yet, or what it knew when the run was stopped."""
        return node.keep("m", torch.zeros_like(node.params))

    def follow(self, m: Tensor, g: Tensor, t: int, node: Node) -> None:
        """Let the memory take in what is new in a gradient; nothing, if that was not finite."""
        if node.refused:
            return
        beta = self.c_beta * (t + 1) ** -self.beta_power
        news = self.clip(g.sub_(m), node)
        m.mul_(beta).add_(news, alpha=1 - beta)

    def decay(self, t: int) -> float:
        """How much of the learning rate is left."""
        return float((t + 1) ** -self.eta_power)


@dataclass(frozen=True, kw_only=True)
class SClipEF(_Memory):
    """SClip-EF: smoothed clipping with error feedback, averaged over all nodes at every step: for convex problems.

        m_i <- beta_t m_i + (1 - beta_t) clip(g_i - m_i)           beta_t = c_beta (t+1)^-beta_power
        x <- x - eta_t mean_i m_i                                  eta_t = eta (t+1)^-eta_power

    It is for noise that has a mean and no variance. m_i is node i's memory of its own gradient, t counts the steps of
    the whole run from 0, eta is the optimizer's learning rate. For deep nets see ``GTNSGDm``.

    Yu, Jakovetic, Kar: smoothed gradient clipping and error feedback for decentralized optimization under symmetric
    heavy-tailed noise, SIAM J. Optim. 2026, arXiv 2310.16920.

    Args:
        clip: What bounds a gradient (see ``fs.clips``). By default ``SmoothClip()``, the paper's. It acts on g_i - m_i.
        c_beta: beta_t at the first step, from 0 to below 1.
        beta_power: Power of t + 1 by which beta_t falls, 0 or more.
        eta_power: Power of t + 1 by which eta_t falls, 0 or more.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries the
            memories.

    Example:
        with fs.join(model, optimizer, fs.SClipEF(clip=fs.clips.SmoothClip(c_phi=20.0, tau=100.0))):
            train(model, optimizer)  # your own loop
    """

    row_wise: ClassVar[bool] = True

    average: Average = Exact()

    def __post_init__(self) -> None:
        super().__post_init__()
        check.has(self, "average", self.average, "start", kind="an average such as Exact()")

    @property
    def equal_steps(self) -> bool:
        """All nodes step with the same vector, unless it is averaged with neighbours only."""
        return not isinstance(self.average, Mixed)

    async def run(self, node: Node) -> None:
        """Follow, average, step."""
        m, mean = self.start(node), self.average.start(node, "memory")
        async for t in node.steps():
            self.follow(m, await node.gradient(node.params), t, node)
            await node.step((await mean(m)).mul_(self.decay(t)))


@dataclass(frozen=True, kw_only=True)
class SClipEFNetwork(_Memory):
    """SClip-EF over a graph: smoothed clipping with error feedback, models mixed with neighbours at every step.

        m_i <- beta_t m_i + (1 - beta_t) clip(g_i - m_i)           beta_t = c_beta (t+1)^-beta_power
        x_i <- sum_j w_ij (x_j - eta_t m_j)                        eta_t = eta (t+1)^-eta_power

    It is for convex problems whose noise has a mean and no variance. m_i is node i's memory of its own gradient, w_ij
    are the weights of the topology, t counts the steps of the whole run from 0, eta is the optimizer's learning rate.
    Every node ends with a model of its own.

    Yu, Jakovetic, Kar: smoothed gradient clipping and error feedback for decentralized optimization under symmetric
    heavy-tailed noise, SIAM J. Optim. 2026, arXiv 2310.16920.

    Args:
        clip: What bounds a gradient (see ``fs.clips``). By default ``SmoothClip()``, the paper's. It acts on g_i - m_i.
        c_beta: beta_t at the first step, from 0 to below 1.
        beta_power: Power of t + 1 by which beta_t falls, 0 or more.
        eta_power: Power of t + 1 by which eta_t falls, 0 or more.
        topology: Which nodes are neighbours (see ``fs.topologies``). By default a ring.
        codec: How vectors become bytes (see ``fs.codecs``). By default in full. It carries models: not ``TopK``.

    Example:
        with fs.join(model, optimizer, fs.SClipEFNetwork(topology=fs.topologies.Ring())):
            train(model, optimizer)  # your own loop
    """

    row_wise: ClassVar[bool] = True

    topology: Topology = Ring()
    codec: Codec = Raw()

    def __post_init__(self) -> None:
        super().__post_init__()
        check.has(self, "topology", self.topology, "peers", "weights", kind="a topology such as Ring()")
        codec_for(self, self.codec, MODELS, such_as="Cast()", instead="Modular(bits=8), Stochastic(bits=8) or Cast()")

    async def run(self, node: Node) -> None:
        """Follow, step, mix."""
        x, m = node.params, self.start(node)
        mix = Mixed(topology=self.topology, codec=self.codec).start(node)
        async for t in node.steps():
            self.follow(m, await node.gradient(x), t, node)
            await node.step(m * self.decay(t))
            x.copy_(await mix(x))
