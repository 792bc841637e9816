"""NoLoCo: local steps, then an outer step with momentum on the average of one random pair; nobody meets everybody.

State of node i: theta_i, the model that trains; phi_i, the slow weights it started its phase from; m_i, outer momentum.

    theta_i <- theta_i - eta * g_i(theta_i)                             ``period`` steps, from phi_i
    delta_i  = theta_i - phi_i
    m_i <- beta m_i + lr * mean_pair(delta) + lr * (mean_pair(phi) - phi_i)
    phi_i <- phi_i + m_i;      theta_i <- phi_i

The last term pulls the slow weights of a pair together; DiLoCo, whose nodes all hold one phi, does not need it. The two
means only enter as their sum, mean_pair(theta) - phi_i, so theta alone is sent: half of what the authors send.
All nodes draw the same pairs from one seed. With an odd number one is alone in a round, with one node always: that is
Lookahead with momentum. A phase that the end of the run cuts short is closed like any other.

Kolehmainen, Blagoev, Donaghy, Ersoy, Nies: NoLoCo, no-all-reduce low communication training method for large models,
2025, arXiv 2506.10911.

Sends   one coded model to one node, every ``period`` steps
Waits   for that node, every ``period`` steps
Keeps   phi and m
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from flockstep import check
from flockstep.codecs.codec import Codec
from flockstep.codecs.coder import coder_for
from flockstep.codecs.raw import Raw
from flockstep.node import Node
from flockstep.parts.partners import matching, swap
from flockstep.parts.statistics import statistics, trained
from flockstep.parts.suitability import MODELS, codec_for


@dataclass(frozen=True, kw_only=True)
class NoLoCo:
    """NoLoCo: every node steps alone, then takes an outer step with momentum together with one other node.

        delta_i = theta_i - phi_i                                                              every ``period`` steps
        m_i <- beta m_i + lr * mean_pair(delta) + lr * (mean_pair(phi) - phi_i)
        phi_i <- phi_i + m_i;      theta_i <- phi_i

    theta_i is the model that trains, phi_i what it was after the last outer step, m_i the outer momentum. Pairs are
    drawn anew in every round. Every node ends with a model of its own.

    Kolehmainen, Blagoev, Donaghy, Ersoy, Nies: NoLoCo, no-all-reduce low communication training method for large
    models, 2025, arXiv 2506.10911.

    Args:
        period: Steps that a node takes between two exchanges.
        outer_lr: Rate of the outer step. lr above.
        outer_momentum: Momentum of the outer step, from 0 to below 1. beta above.
        codec: How vectors become bytes (see ``fs.codecs``). By default in full. It carries models: not ``TopK``.
        matching_seed: Seed from which every node draws the same pairs.

    Example:
        with fs.join(model, optimizer, fs.NoLoCo(period=50)):
            train(model, optimizer)  # your own loop
    """

    own_gradients: ClassVar[bool] = True

    period: int = 50
    outer_lr: float = 0.7
    outer_momentum: float = 0.5
    codec: Codec = Raw()
    matching_seed: int = 0

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        check.positive(self, "outer_lr", self.outer_lr)
        if check.not_negative(self, "outer_momentum", self.outer_momentum) >= 1:
            raise ValueError(f"NoLoCo.outer_momentum must be below 1, got {self.outer_momentum}")
        codec_for(self, self.codec, MODELS, such_as="Modular(bits=8)", instead="Modular(bits=8) or Cast()")
        check.whole(self, "matching_seed", self.matching_seed, at_least=0)

    async def run(self, node: Node) -> None:
        """Phases of local steps, each closed with this round's partner."""
        theta = node.params
        # Halves are added up as floats.
        slow = theta.to(torch.promote_types(theta.dtype, torch.float32), copy=True)
        phi, m = node.keep("phi", slow), node.keep("momentum", torch.zeros_like(trained(slow, node)))
        coder = coder_for(self.codec, node, theta)
        async for round in node.rounds(self.period):
            async for _ in round:
                await node.step(await node.gradient(theta))
            delta = (theta - phi.to(theta.dtype)).to(phi.dtype)
            partner = matching(self.matching_seed, round.number, node.size).get(node.rank)
            if partner is not None:
                # From theta_i to the pair's mean: both means at once.
                delta += await swap(node, partner, theta, coder)
            m.mul_(self.outer_momentum).add_(trained(delta, node), alpha=self.outer_lr)
            # Batch-norm statistics, which nobody trains, become the pair's mean: momentum could carry them below zero.
            phi.add_(torch.cat([m, statistics(delta, node)]))
            theta.copy_(phi)
