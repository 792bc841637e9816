"""Stochastic gradient push (SGP): averages over one-way links, by weights that travel with the models.

State of node i: x_i, shares of everybody's models added up, and w_i, how much that is in all; the model is x_i / w_i.

    x_i <- x_i - eta * g_i(z_i)                       every step; the gradient is at z_i = x_i / w_i
    (x_i, w_i) <- sum_j p_ij (x_j, w_j)               each gives some of what it has, and keeps the rest

With ``overlap=True`` a push travels while the next gradient is computed, at z_i as it was before; its step is added to
what the push has left. At learning rates near the highest that one node stands, that lost to training alone.

What a node gives and keeps adds up to what it had, so sum_i w_i stays n and sum_i x_i moves by the steps only, whoever
gives to whom; nobody need answer. In round k, node i gives half to node i + 2^(k mod ceil(log2 n)), modulo n: as each
then gets what it gave, w_i stays 1. It is for graphs of a subclass's own that the weights are there.

The model a user sees, computes and evaluates with is z. What the optimizer did to it, whichever optimizer it is, is
added to x as it stands, not times w_i: that is the paper's step where it is plain SGD, and every node's step counts the
same in sum_i x_i, however much of the others a node happens to hold.

Assran, Loizou, Ballas, Rabbat: stochastic gradient push for distributed deep learning, ICML 2019, arXiv 1811.10792.

Sends   half of its model and of its weight to one node, every step
Waits   for one other node, every step; overlapped, for what takes longer than a gradient
Keeps   x and w
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flockstep.codecs.raw import Raw
from flockstep.node import Node


@dataclass(frozen=True, kw_only=True)
class SGP:
    """Stochastic gradient push: every node gives half of what it has to one other node, another one at every step.

        x_i <- x_i - eta * g_i(z_i)                                the gradient is at z_i = x_i / w_i
        (x_i, w_i) <- sum_j p_ij (x_j, w_j)                        node j keeps a half and gives a half

    x_i is what node i holds of all models, w_i how much that is in all, z_i the model it trains. In round k node i
    gives to node i + 2^(k mod ceil(log2 n)), modulo n; a subclass may override ``targets`` with any one-way graph.
    Every node ends with a model of its own.

    Assran, Loizou, Ballas, Rabbat: stochastic gradient push for distributed deep learning, ICML 2019, arXiv 1811.10792.

    Args:
        overlap: True: messages travel while the next gradient is computed, at a model that does not have them yet.
            False: a node waits for one other after every step.

    Example:
        with fs.join(model, optimizer, fs.SGP()):
            train(model, optimizer)  # your own loop
    """

    own_gradients: ClassVar[bool] = True

    overlap: bool = False

    def targets(self, rank: int, size: int, round: int) -> tuple[int, ...]:
        """Whom a node sends to in a round; a subclass may name any others, and any number of them."""
        if size == 1:
            return ()
        # Shifts, because a logarithm in floating point can miss by one.
        return ((rank + (1 << round % (size - 1).bit_length())) % size,)

    async def run(self, node: Node) -> None:
        """Step and push in turn, or at the same time; then what is under way at the end is taken in."""
        z = node.params
        wide = torch.promote_types(z.dtype, torch.float32)
        mass = node.keep("mass", torch.cat([z, z.new_ones(1)]).to(wide))
        x, w = mass[:-1], mass[-1:]

        async def step() -> Tensor:
            await node.step(await node.gradient(z))
            # By the optimizer, and where there are batch-norm statistics by the forward pass.
            return z - (x / w).to(z.dtype)

        if not self.overlap:
            async for k in node.steps():
                x += await step()
                mass.copy_(await self._push(node, mass, k))
                z.copy_(x / w)
            return
        # Begun when a step ends, so that in a user's own loop, too, messages travel during the next forward pass.
        pushing = node.spawn(self._push(node, mass, node.step_count))
        async for k in node.steps():
            change = await step()
            mass.copy_(await pushing)
            x += change
            z.copy_(x / w)
            pushing = node.spawn(self._push(node, mass, k + 1))
        mass.copy_(await pushing)
        z.copy_(x / w)

    async def _push(self, node: Node, mass: Tensor, round: int) -> Tensor:
        """One round: what this node keeps, and what it is given."""
        targets = self.targets(node.rank, node.size, round)
        share = mass / (1 + len(targets))
        for peer in targets:
            node.send(peer, Raw().encode(share, node.rng))
        for peer in range(node.size):
            if node.rank in self.targets(peer, node.size, round):
                share += Raw().decode(await node.receive(peer), share)
        return share
