"""Clipped local steps when nodes hold different data: one decision to clip for all, and corrected gradients.

EPISODE       round:  G_i = gradient of node i at xbar on one batch;  G = mean_i G_i;  clip = ||G|| > gamma/eta
              steps:  g = g_i(x_i) - G_i + G;   x_i <- x_i - eta g,  or  x_i - gamma g/||g||  where clip
              end:    x_i <- mean_j x_j
              Crawshaw, Bao, Liu: ICLR 2023.

EPISODE++     the same with S of n nodes per round and a stored G_i in place of a fresh one; after the round, for the
              sampled, G_i <- mean of the raw local gradients;  G <- G + (1/n) sum_i change of G_i;
              models are averaged over the sampled.   Crawshaw, Bao, Liu: NeurIPS 2023.

No gamma is one and a half times as far as steps with G usually go (``parts.usual``): the same on every node, as G is.

With ``published=True`` this is all, and EPISODE's steps are on batches of their own. Otherwise a round's first step is
G's, so that no batch is used for nothing, and of G - G_i as much is added as it has in common with that of the round
before. That is what the nodes' data differ in; the rest is the noise of a batch, and a round of steps that all take the
same noise loses to training alone.
                      g = g_i(x_i) + s (G - G_i),   s = sum_i <c_i, c_i'> / sqrt(sum_i ||c_i||^2 sum_i ||c_i'||^2)
with c = G - G_i of this round and c' of the last; between 0 and 1, and the same on every node, as corrections that do
not add up to zero would move the mean. For c = signal + noise this s is the one with the least expected error.

Sends   two vectors per round: a gradient (or its change) and a model; unless published, three numbers as well
Waits   for every node, twice per round; unless published, three times
Keeps   G_i and G; EPISODE++ also the sum of the round's raw gradients; without a gamma, this round's; s
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flockstep import check
from flockstep.averages.averages import Exact
from flockstep.clips import UsualCap
from flockstep.node import Node, stream
from flockstep.parts.clip_thresholds import Threshold, looked
from flockstep.parts.suitability import MODELS, average_for
from flockstep.strategy import Average, Mean


@dataclass(frozen=True, kw_only=True)
class _Corrected:
    """What both have; each says what its fields mean."""

    period: int
    gamma: float | None = None
    published: bool = False
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        if self.gamma is not None:
            check.positive(self, "gamma", self.gamma)
        average_for(self, self.average, MODELS)


@dataclass(frozen=True, kw_only=True)
class Episode(_Corrected):
    """EPISODE: local steps with corrected gradients, clipped on all nodes or on none: for nodes with different data.

        round:   G_i = node i's gradient where the round begins;   G = mean_i G_i;   clip where eta * ||G|| > gamma
        steps:   g = g_i(x_i) + s (G - G_i);   x_i <- x_i - eta * g,   or where clip   x_i <- x_i - gamma * g / ||g||
        end:     x_i <- mean_j x_j                                                               every ``period`` steps

    s, from 0 to 1, is how much G - G_i is like that of the round before, over all nodes: what their data differ in, and
    not the noise of a batch. A round's first step is taken with G itself. Every node ends with the same model.

    Crawshaw, Bao, Liu: ICLR 2023, which has s = 1.

    Args:
        period: Steps that a node takes between two exchanges. An exchange is of two vectors, a gradient and a model.
        gamma: Longest step, as a distance in parameter space. In a round whose mean gradient would step farther, all
            steps have this length. It shrinks as a schedule lowers the learning rate. None: 1.5 times the usual length
            of a step with G.
        published: True: the update as published. s is 1, and G_i has a batch of its own, with which no step is taken.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries models: not
            ``PowerSGD``, and none with ``TopK``.

    Example:
        with fs.join(model, optimizer, fs.Episode(period=8)):
            train(model, optimizer)  # your own loop
    """

    async def run(self, node: Node) -> None:
        """Each round: agree on G and on clipping, take corrected steps, average models."""
        x = node.params
        mean_model, mean_gradient = self.average.start(node, "model"), self.average.start(node, "gradient")
        steps = _Steps(self, node)
        async for round in node.rounds(self.period):
            if not round.is_resumed:
                own = (await node.gradient(x)).clone()
                await steps.begin_round(own, await mean_gradient(own))
            together = not (round.is_resumed or self.published)
            async for _ in round:
                await node.step(steps.together() if together else steps.corrected(await node.gradient(x)))
                together = False
            x.copy_(await mean_model(x))


@dataclass(frozen=True, kw_only=True)
class EpisodePlus(_Corrected):
    """EPISODE++: as EPISODE, but some of the nodes work in each round, and corrections are stored, not recomputed.

        steps:   g = g_i(x_i) + s (G - G_i);   x_i <- x_i - eta * g,   or where clip   x_i <- x_i - gamma * g / ||g||
        end:     G_i <- mean of the round's own g_i(x_i);   G <- G + (1/n) sum_i change of G_i   every ``period`` steps
                 x_i <- mean of x_j over the nodes that worked;   clip where eta * ||G|| > gamma

    s, from 0 to 1, is how much G - G_i is like that of the round before, over all nodes that worked. Nodes that do not
    work take part in both means with zeros. Every node ends with the same model.

    Crawshaw, Bao, Liu: NeurIPS 2023, which has s = 1.

    Args:
        period: Steps that a node takes between two exchanges. An exchange is of two vectors, a gradient and a model.
        gamma: Longest step, as a distance in parameter space. In a round whose mean gradient would step farther, all
            steps have this length. It shrinks as a schedule lowers the learning rate. None: 1.5 times the usual length
            of a step with G.
        published: True: the update as published. s is 1.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries models: not
            ``PowerSGD``, and none with ``TopK``.
        sampled: Nodes that work in each round. None: all of them.
        sampling_seed: Seed from which every node draws the same nodes to work.

    Example:
        with fs.join(model, optimizer, fs.EpisodePlus(period=8)):
            train(model, optimizer)  # your own loop
    """

    sampled: int | None = None
    sampling_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampled is not None:
            check.whole(self, "sampled", self.sampled)
        check.whole(self, "sampling_seed", self.sampling_seed, at_least=0)

    async def run(self, node: Node) -> None:
        """Rounds of the sampled; the others stand by and take part in both means."""
        x, workers = node.params, len(self.sample(0, node.size))
        mean_model, mean_gradient = self.average.start(node, "model"), self.average.start(node, "gradient")
        raw, taken = node.keep("raw", torch.zeros_like(x), own=True), node.keep("taken", torch.zeros(1), own=True)
        steps = _Steps(self, node)
        if node.step_count == 0:
            own = (await node.gradient(x)).clone()
            await steps.begin_round(own, await mean_gradient(own))
        async for round in node.rounds(self.period):
            works = node.rank in self.sample(round.number, node.size)
            async for _ in round:
                if works:
                    g = await node.gradient(x)
                    tamed = steps.corrected(g)
                    if tamed is not None:
                        raw += g
                        taken += 1
                    await node.step(tamed)
            own = raw / taken.item() if taken.item() else steps.own
            everyone = await steps.everyone_with(own, mean_gradient)
            # Those who stood by bring zeros, so the mean over all, scaled, is the mean over the sampled.
            x.copy_(await mean_model(x * (node.size / workers) if works else torch.zeros_like(x)))
            await steps.begin_round(own, everyone, is_new=bool(taken.item()))
            raw.zero_()
            taken.zero_()

    def sample(self, round: int, size: int) -> list[int]:
        """Who works in a round: the same answer on every node."""
        sampled = size if self.sampled is None else self.sampled
        if sampled > size:
            raise ValueError(f"EpisodePlus.sampled must be at most the number of nodes, {size}, got {sampled}")
        drawn = stream(self.sampling_seed, round, "sampling").choice(size, sampled, replace=False)
        return sorted(int(rank) for rank in drawn)


class _Steps:
    """The steps of a round: what is added to a gradient, and how far it may go."""

    def __init__(self, owner: _Corrected, node: Node) -> None:
        self._owner, self._node = owner, node
        # A node that comes corrects nothing until its first round: its G_i is that of its own data.
        self.own, self.everyone = (
            node.keep(name, torch.zeros_like(node.params), own=True) for name in ("own", "everyone")
        )
        self._share = torch.ones((), dtype=torch.float64)
        if not owner.published:
            self._share = node.keep("share", self._share)
        self._usual: UsualCap | None = None
        self._gamma = torch.full((), owner.gamma or math.inf, dtype=torch.float64)
        if owner.gamma is None:
            self._usual, self._gamma = UsualCap(node), node.keep("gamma", self._gamma)

    async def everyone_with(self, own: Tensor, mean: Mean) -> Tensor:
        """G + (1/n) sum_i change of G_i; where nodes died or came, anew: changes are of those who had a part in G."""
        before = self._node.view
        everyone = self.everyone + await mean(own - self.own)
        return everyone if self._node.view == before else await mean(own)

    async def begin_round(self, own: Tensor, everyone: Tensor, *, is_new: bool = True) -> None:
        """Take in G_i and G; ``is_new``: this node's G_i is not that of the last round."""
        if not self._owner.published:
            self._share.copy_(await self._likeness(everyone - own, self.everyone - self.own, is_new))
        self.own.copy_(own)
        self.everyone.copy_(everyone)
        if self._usual is not None:
            self._gamma.copy_(self._usual.cap(self._node.step_length(everyone, initial=True)))

    async def _likeness(self, now: Tensor, before: Tensor, is_new: bool) -> Tensor:
        """Between 0 and 1, over all nodes that have something new; 0 where there was nothing before."""
        wide = torch.promote_types(now.dtype, torch.float32)
        now, before = now.to(wide), before.to(wide)
        sums = self._node.total(torch.stack([now @ before, now @ now, before @ before]).double())
        common, of_now, of_before = await self._node.mean(sums if is_new else torch.zeros_like(sums), "likeness")
        likeness: Tensor = common / (of_now * of_before).sqrt()
        return likeness.nan_to_num(0.0, 0.0, 0.0).clamp(0, 1)

    def together(self) -> Tensor | None:
        """A step with G itself; who has no gradient takes the others' step."""
        return self._tamed(self.everyone.clone())

    def corrected(self, g: Tensor) -> Tensor | None:
        """A step with g + s (G - G_i); None where g was not finite."""
        if self._node.refused:
            return None
        share = float(self._share)
        return self._tamed(g + share * (self.everyone - self.own) if share else g)

    def _tamed(self, g: Tensor) -> Tensor | None:
        """``g``, its step brought to length gamma where ||G|| > gamma/eta; None if it is not finite."""
        node, gamma = self._node, float(self._gamma)
        length = float(node.step_length(g, initial=True))
        if not math.isfinite(length):
            return None
        agreed = float(node.step_length(self.everyone, initial=True))
        clips = length > 0 and agreed > gamma
        if self._usual is None:
            looked(node, Threshold(self._owner, "gamma", "steps, by the mean gradient"), agreed, clips)
        if not clips:
            return g
        node.count("clipped")
        return g * (gamma / length)
