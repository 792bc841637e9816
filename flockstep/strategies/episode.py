"""Clipped local steps when nodes hold different data: one decision to clip for all, and corrected gradients.

EPISODE       round:  G_i = gradient of node i at xbar on a fresh batch;  G = mean_i G_i;  clip = ||G|| > gamma/eta
              steps:  g = g_i(x_i) - G_i + G;   x_i <- x_i - eta g,  or  x_i - gamma g/||g||  where clip
              end:    x_i <- mean_j x_j
              Crawshaw, Bao, Liu: ICLR 2023.

EPISODE++     the same with S of n nodes per round and a stored G_i in place of a fresh one; after the round, for the
              sampled, G_i <- mean of the raw local gradients;  G <- G + (1/n) sum_i change of G_i;
              models are averaged over the sampled.   Crawshaw, Bao, Liu: NeurIPS 2023.

No gamma is one and a half times as far as steps with G usually go (``parts.usual``): the same on every node, as G is.

Sends   two vectors per round: a gradient (or its change) and a model
Waits   for every node, twice per round
Keeps   G_i and G; EPISODE++ also the sum of the round's raw gradients; without a gamma, this round's
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flockstep import check
from flockstep.node import Node, stream
from flockstep.parts.averages import Exact
from flockstep.parts.suited import MODELS, average_for
from flockstep.parts.thresholds import Threshold, looked
from flockstep.parts.usual import Usual
from flockstep.strategy import Average


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Local steps with corrected gradients, clipped together or not at all: for heterogeneous data."""

    period: int
    gamma: float | None = None
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        if self.gamma is not None:
            check.positive(self, "gamma", self.gamma)
        average_for(self, self.average, MODELS)

    async def run(self, node: Node) -> None:
        """Each round: agree on G and on clipping, take corrected steps, average models."""
        x = node.params
        mean_model, mean_gradient = self.average.start(node, "model"), self.average.start(node, "gradient")
        own, everyone = (node.keep(name, torch.zeros_like(x)) for name in ("own", "everyone"))
        gamma = _Gamma(self, node)
        k = node.step_count - 1
        async for k in node.steps():
            if k % self.period == 0:
                own.copy_(await node.gradient(x))
                everyone.copy_(await mean_gradient(own))
                gamma.begin_round(everyone)
            g = await node.gradient(x)
            await node.step(gamma.corrected(g, own, everyone))
            if (k + 1) % self.period == 0:
                x.copy_(await mean_model(x))
        if (k + 1) % self.period:
            x.copy_(await mean_model(x))


@dataclass(frozen=True, kw_only=True)
class EpisodePlus:
    """EPISODE++: ``sampled`` nodes work in each round, all unless given; corrections are stored, not recomputed."""

    period: int
    gamma: float | None = None
    sampled: int | None = None
    sampling_seed: int = 0
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        if self.gamma is not None:
            check.positive(self, "gamma", self.gamma)
        if self.sampled is not None:
            check.whole(self, "sampled", self.sampled)
        check.whole(self, "sampling_seed", self.sampling_seed, at_least=0)
        average_for(self, self.average, MODELS)

    async def run(self, node: Node) -> None:
        """Rounds of the sampled; the others stand by and take part in both means."""
        sampled = node.size if self.sampled is None else self.sampled
        if sampled > node.size:
            raise ValueError(f"EpisodePlus.sampled must be at most the number of nodes, {node.size}, got {sampled}")
        x = node.params
        mean_model, mean_gradient = self.average.start(node, "model"), self.average.start(node, "gradient")
        own, everyone, raw = (node.keep(name, torch.zeros_like(x)) for name in ("own", "everyone", "raw"))
        taken, gamma = node.keep("taken", torch.zeros(1)), _Gamma(self, node)
        if node.step_count == 0:
            own.copy_(await node.gradient(x))
            everyone.copy_(await mean_gradient(own))
            gamma.begin_round(everyone)

        async def close_round(works: bool) -> None:
            fresh = raw / taken.item() if taken.item() else own
            everyone.add_(await mean_gradient(fresh - own))
            own.copy_(fresh)
            raw.zero_()
            taken.zero_()
            # Those who stood by bring zeros, so the mean over all, scaled, is the mean over the sampled.
            x.copy_(await mean_model(x * (node.size / sampled) if works else torch.zeros_like(x)))
            gamma.begin_round(everyone)

        k, works = node.step_count - 1, False
        async for k in node.steps():
            works = node.rank in self.sample(k // self.period, node.size)
            if works:
                g = await node.gradient(x)
                tamed = gamma.corrected(g, own, everyone)
                if tamed is not None:
                    raw += g
                    taken += 1
                await node.step(tamed)
            if (k + 1) % self.period == 0:
                await close_round(works)
        if (k + 1) % self.period:
            await close_round(works)

    def sample(self, round: int, size: int) -> list[int]:
        """Who works in a round: the same answer on every node."""
        sampled = size if self.sampled is None else self.sampled
        drawn = stream(self.sampling_seed, round, "sampling").choice(size, sampled, replace=False)
        return sorted(int(rank) for rank in drawn)


class _Gamma:
    """How far a step may go: as far as was given, or what is usual when the round begins."""

    def __init__(self, owner: Episode | EpisodePlus, node: Node) -> None:
        self._owner, self._node = owner, node
        self._usual: Usual | None = None
        self._now = torch.full((), owner.gamma or math.inf, dtype=torch.float64)
        if owner.gamma is None:
            self._usual, self._now = Usual(node), node.keep("gamma", self._now)

    def begin_round(self, everyone: Tensor) -> None:
        if self._usual is not None:
            self._now.copy_(self._usual.cap(self._node.step_length(everyone, initial=True)))

    def corrected(self, g: Tensor, own: Tensor, everyone: Tensor) -> Tensor | None:
        """g - G_i + G, its step brought to length gamma where ||G|| > gamma/eta; None if it is not finite."""
        g, node, gamma = g - own + everyone, self._node, float(self._now)
        length = float(node.step_length(g, initial=True))
        if node.refused or not math.isfinite(length):
            return None
        agreed = float(node.step_length(everyone, initial=True))
        clips = length > 0 and agreed > gamma
        if self._usual is None:
            looked(node, Threshold(self._owner, "gamma", "steps, by the mean gradient"), agreed, clips)
        if not clips:
            return g
        node.count("clipped")
        return g * (gamma / length)
