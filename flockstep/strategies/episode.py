"""Clipped local steps when nodes hold different data: one decision to clip for all, and corrected gradients.

EPISODE       round:  G_i = gradient of node i at xbar on a fresh batch;  G = mean_i G_i;  clip = ||G|| > gamma/eta
              steps:  g = g_i(x_i) - G_i + G;   x_i <- x_i - eta g,  or  x_i - gamma g/||g||  where clip
              end:    x_i <- mean_j x_j
              Crawshaw, Bao, Liu: ICLR 2023.

EPISODE++     the same with S of n nodes per round and a stored G_i in place of a fresh one; after the round, for the
              sampled, G_i <- mean of the raw local gradients;  G <- G + (1/n) sum_i change of G_i;
              models are averaged over the sampled.   Crawshaw, Bao, Liu: NeurIPS 2023.

Sends   two vectors per round: a gradient (or its change) and a model
Waits   for every node, twice per round
Keeps   G_i and G; EPISODE++ also the sum of the round's raw gradients
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
from flockstep.strategy import Average


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Local steps with corrected gradients, clipped together or not at all: for heterogeneous data."""

    period: int
    gamma: float
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        check.positive(self, "gamma", self.gamma)
        average_for(self, self.average, MODELS)

    async def run(self, node: Node) -> None:
        """Each round: agree on G and on clipping, take corrected steps, average models."""
        x = node.params
        mean_model, mean_gradient = self.average.start(node, "model"), self.average.start(node, "gradient")
        own, everyone = (node.keep(name, torch.zeros_like(x)) for name in ("own", "everyone"))
        k = node.step_count - 1
        async for k in node.steps():
            if k % self.period == 0:
                own.copy_(await node.gradient(x))
                everyone.copy_(await mean_gradient(own))
            g = await node.gradient(x)
            await node.step(corrected(g, own, everyone, self.gamma, node, self))
            if (k + 1) % self.period == 0:
                x.copy_(await mean_model(x))
        if (k + 1) % self.period:
            x.copy_(await mean_model(x))


@dataclass(frozen=True, kw_only=True)
class EpisodePlus:
    """EPISODE++: ``sampled`` of the nodes work in each round; corrections are stored instead of recomputed."""

    period: int
    gamma: float
    sampled: int
    sampling_seed: int = 0
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        check.positive(self, "gamma", self.gamma)
        check.whole(self, "sampled", self.sampled)
        check.whole(self, "sampling_seed", self.sampling_seed, at_least=0)
        average_for(self, self.average, MODELS)

    async def run(self, node: Node) -> None:
        """Rounds of the sampled; the others stand by and take part in both means."""
        if self.sampled > node.size:
            raise ValueError(
                f"EpisodePlus.sampled must be at most the number of nodes, {node.size}, got {self.sampled}"
            )
        x = node.params
        mean_model, mean_gradient = self.average.start(node, "model"), self.average.start(node, "gradient")
        own, everyone, raw = (node.keep(name, torch.zeros_like(x)) for name in ("own", "everyone", "raw"))
        taken = node.keep("taken", torch.zeros(1))
        if node.step_count == 0:
            own.copy_(await node.gradient(x))
            everyone.copy_(await mean_gradient(own))

        async def close_round(works: bool) -> None:
            fresh = raw / taken.item() if taken.item() else own
            everyone.add_(await mean_gradient(fresh - own))
            own.copy_(fresh)
            raw.zero_()
            taken.zero_()
            # Those who stood by bring zeros, so the mean over all, scaled, is the mean over the sampled.
            x.copy_(await mean_model(x * (node.size / self.sampled) if works else torch.zeros_like(x)))

        k, works = node.step_count - 1, False
        async for k in node.steps():
            works = node.rank in self.sample(k // self.period, node.size)
            if works:
                g = await node.gradient(x)
                tamed = corrected(g, own, everyone, self.gamma, node, self)
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
        drawn = stream(self.sampling_seed, round, "sampling").choice(size, self.sampled, replace=False)
        return sorted(int(rank) for rank in drawn)


def corrected(
    g: Tensor, own: Tensor, everyone: Tensor, gamma: float, node: Node, owner: Episode | EpisodePlus
) -> Tensor | None:
    """g - G_i + G, its step brought to length gamma where ||G|| > gamma/eta; None if it is not finite."""
    g = g - own + everyone
    length = float(node.step_length(g, initial=True))
    if node.refused or not math.isfinite(length):
        return None
    agreed = float(node.step_length(everyone, initial=True))
    clips = length > 0 and agreed > gamma
    looked(node, Threshold(owner, "gamma", "steps, by the mean gradient"), agreed, clips)
    if not clips:
        return g
    node.count("clipped")
    return g * (gamma / length)
