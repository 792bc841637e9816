"""Clips: gradient in, tamer gradient out.

They change the gradient in place. One whose norm is not finite is refused by returning None: the node skips that step
and counts it. On a GPU, waiting for a norm at every step would cost more than the clip: there everything is decided on
the device, a gradient that is not finite becomes zero (an optimizer with momentum coasts, another stands still), and
both are counted without being looked at. In a Flock, which steps for all nodes at once, one row that is not finite
refuses the gradient of all: such a run must be taken node by node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.node import Node
from flockstep.parts.clip_thresholds import Threshold, looked
from flockstep.vector import WIDE, norm

__all__ = ["ClipCoordinates", "ClipNorm", "ClipStep", "NoClip", "SmoothClip"]


@dataclass(frozen=True)
class NoClip:
    """The gradient as it is."""

    row_wise: ClassVar[bool] = True

    def __call__(self, g: Tensor, node: Node) -> Tensor:
        """The same gradient."""
        return g


@dataclass(frozen=True, kw_only=True)
class ClipNorm:
    """Scales a gradient down to a norm: the norm of the whole vector, before weight decay and momentum.

        g <- g * min(1, max_norm / ||g||)

    Pascanu, Mikolov, Bengio: on the difficulty of training recurrent neural networks, ICML 2013, arXiv 1211.5063.

    Args:
        max_norm: Largest Euclidean norm, in units of the gradient: a number, or a function of the step, from 0.

    Example:
        fs.DataParallel(clip=fs.clips.ClipNorm(max_norm=1.0))  # clips the mean of all nodes' gradients
    """

    row_wise: ClassVar[bool] = True

    max_norm: float | Callable[[int], float]

    def __post_init__(self) -> None:
        if not callable(self.max_norm):
            check.positive(self, "max_norm", self.max_norm)

    def __call__(self, g: Tensor, node: Node) -> Tensor | None:
        """The gradient, no longer than ``max_norm``."""
        cap = self.max_norm(node.step_count - 1) if callable(self.max_norm) else self.max_norm
        return scaled_to(cap, g, node.length(g), node, Threshold(self, "max_norm", "gradients"))


@dataclass(frozen=True, kw_only=True)
class ClipCoordinates:
    """Brings every coordinate of a gradient between -limit and limit.

        g_k <- min(max(g_k, -limit), limit)

    Args:
        limit: Largest magnitude of a coordinate, in units of the gradient: a number, or a function of the step, from 0.
    """

    row_wise: ClassVar[bool] = True

    limit: float | Callable[[int], float]

    def __post_init__(self) -> None:
        if not callable(self.limit):
            check.positive(self, "limit", self.limit)

    def __call__(self, g: Tensor, node: Node) -> Tensor | None:
        """The gradient, no coordinate of which is beyond the limit."""
        limit = self.limit(node.step_count - 1) if callable(self.limit) else self.limit
        return _numbers_only(g.clamp_(-limit, limit), node)


@dataclass(frozen=True, kw_only=True)
class SmoothClip:
    """Bounds every coordinate smoothly: nearly linear where it is small, never beyond phi_t.

        y <- phi_t y / sqrt(y^2 + eps_t),      phi_t = c_phi (t+1)^-phi_power,   eps_t = tau (t+1)^eps_power

    t is the step, from 0: phi_t falls and eps_t grows, so that less and less is cut off from what lies below sqrt(tau).
    An infinite coordinate becomes phi_t, and one that is not a number 0, which is counted.

    Yu, Jakovetic, Kar: smoothed gradient clipping and error feedback for decentralized optimization under symmetric
    heavy-tailed noise, SIAM J. Optim. 2026, arXiv 2310.16920, with its powers as defaults.

    Args:
        c_phi: phi_t at the first step, in units of the gradient.
        tau: eps_t at the first step, in units of the gradient squared. sqrt(tau) near a typical coordinate of a
            gradient with its noise is a good choice.
        phi_power: Power of t + 1 by which phi_t falls, 0 or more.
        eps_power: Power of t + 1 by which eps_t grows, 0 or more.

    Example:
        fs.SClipEF(clip=fs.clips.SmoothClip(c_phi=20.0, tau=100.0))
    """

    row_wise: ClassVar[bool] = True

    c_phi: float = 20.0
    tau: float = 100.0
    phi_power: float = 0.5
    eps_power: float = 0.6

    def __post_init__(self) -> None:
        check.positive(self, "c_phi", self.c_phi)
        check.positive(self, "tau", self.tau)
        check.not_negative(self, "phi_power", self.phi_power)
        check.not_negative(self, "eps_power", self.eps_power)

    def __call__(self, g: Tensor, node: Node) -> Tensor:
        """The clipped vector; infinity becomes phi_t, and what is not a number 0, which is counted."""
        t = node.step_count
        phi, eps = self.c_phi * t**-self.phi_power, self.tau * t**self.eps_power
        if g.device.type == "cpu" and g.dtype in WIDE and bool(node.length(g).isfinite().all()):
            # No square overflows: this is faster than what follows.
            return g.div_(g.square().add_(eps).sqrt_()).mul_(phi)
        y = _numbers_only(g, node).to(torch.promote_types(g.dtype, torch.float32))
        width = torch.full((), eps**0.5, dtype=y.dtype, device=y.device)
        return (y / torch.hypot(y, width)).mul_(phi).to(g.dtype)


def _numbers_only(g: Tensor, node: Node) -> Tensor:
    """``g`` with infinities made finite and 0 for what is not a number, in place; the latter are counted."""
    node.count("not a number", g.isnan().sum(-1))
    return g.nan_to_num_()


@dataclass(frozen=True, kw_only=True)
class ClipStep:
    """Bounds the length of a plain SGD step, not of the gradient; eta is the optimizer's learning rate now.

        eta * g <- min(eta, gamma / ||g||) * g

    Liu, Zhuang, Lei, Liao: communication-efficient local gradient clipping, NeurIPS 2022, arXiv 2205.05040.

    Args:
        gamma: Longest step, as a distance in parameter space. A number shrinks as a schedule lowers the learning rate:
            at a tenth of the initial rate the cap is gamma / 10. A function of the step, from 0, is taken as it stands.

    Example:
        fs.LocalSGD(period=8, clip=fs.clips.ClipStep(gamma=0.1))
    """

    row_wise: ClassVar[bool] = True

    gamma: float | Callable[[int], float]

    def __post_init__(self) -> None:
        if not callable(self.gamma):
            check.positive(self, "gamma", self.gamma)

    def __call__(self, g: Tensor, node: Node) -> Tensor | None:
        """The gradient whose step is no longer than gamma."""
        return capped(self.gamma, g, node, self)


def capped(gamma: float | Callable[[int], float] | UsualCap, g: Tensor, node: Node, owner: object) -> Tensor | None:
    """What ``ClipStep`` does, in the name of whoever has the ``gamma``."""
    if isinstance(gamma, UsualCap):
        length = node.step_length(g, initial=True)
        return scaled_to(gamma.cap(length), g, length, node)
    measured = Threshold(owner, "gamma", "steps")
    if callable(gamma):
        return scaled_to(gamma(node.step_count - 1), g, node.step_length(g), node, measured)
    return scaled_to(gamma, g, node.step_length(g, initial=True), node, measured)


def scaled_to(
    cap: float | Tensor, g: Tensor, length: Tensor, node: Node, threshold: Threshold | None = None
) -> Tensor | None:
    """``g`` scaled in place by min(1, cap / length), counted when it was; None where the length is not finite."""
    if g.device.type != "cpu":
        return _scaled_unseen(cap, g, length, node, threshold)
    if length.numel() > 1:
        return _scaled_unseen(cap, g, length, node, threshold) if bool(length.isfinite().all()) else None
    measured, cap = float(length), float(cap)
    if not math.isfinite(measured):
        return None
    if threshold is not None:
        looked(node, threshold, measured, measured > cap)
    if measured > cap:
        node.count("clipped")
        g *= cap / measured
    return g


def _scaled_unseen(cap: float | Tensor, g: Tensor, length: Tensor, node: Node, threshold: Threshold | None) -> Tensor:
    finite = length.isfinite()
    over = finite & (length > cap)
    if threshold is not None:
        looked(node, threshold, length, over)
    node.count("clipped", over.squeeze(-1))
    node.count("not finite", (~finite).squeeze(-1))
    g *= (cap / length).clamp(max=1.0)
    return g.masked_fill_(~finite, 0.0)


_ABOVE = 1.5
_FIRST = 10
_DOWN, _UP = 50.0, 200.0


class UsualCap:
    """How long the steps of a node usually are."""

    def __init__(self, node: Node) -> None:
        like = norm(node.params)
        # Shown from the beginning, and where nothing is ever cut.
        node.count("clipped", 0)
        self._mean = node.keep("usual length", torch.zeros_like(like))
        self._seen = node.keep("lengths seen", torch.zeros_like(like))

    def cap(self, length: Tensor) -> Tensor:
        """What a step of this length is cut to if it is longer; the step then counts."""
        counts = length.isfinite() & (length > 0)
        cap = torch.where(self._seen > 0, _ABOVE * self._mean, length)
        self._seen.add_(counts).clamp_(max=_FIRST + 1)
        news = torch.where(counts, torch.minimum(length, cap) - self._mean, 0.0)
        over = torch.where(self._seen <= _FIRST, self._seen.clamp(min=1), torch.where(news > 0, _UP, _DOWN))
        self._mean.add_(news / over)
        return cap
