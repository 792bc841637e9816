"""Decentralised parallel SGD (D-PSGD): every step, each node averages with its neighbours only.

    x_i <- sum_j w_ij x_j - eta * g_i(x_i)                 every step; the gradient is at x_i as it was before

Nodes drift apart as far as the graph is slow to mix. The sum is applied as  x_i <- x_i + sum_j w_ij (Q(x_j) - Q(x_i)):
the weights are symmetric, so the mean of all nodes moves by their steps only, exactly, whatever the codec does.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017,
arXiv 1705.09056.

Sends   one coded model to each neighbour, every step
Waits   for its neighbours, every step; messages travel while the gradient is computed
Keeps   one number, from which every round's codec draws: a resumed run says again what was under way
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flockstep import check
from flockstep.node import Node
from flockstep.parts.codecs.codec import Codec
from flockstep.parts.codecs.raw import Raw
from flockstep.parts.topologies import Ring, Topology


@dataclass(frozen=True, kw_only=True)
class Gossip:
    """Average with your neighbours at every step: D-PSGD."""

    topology: Topology = Ring()
    codec: Codec = Raw()

    def __post_init__(self) -> None:
        check.has(self, "topology", self.topology, "peers", "weights", kind="a topology such as Ring()")
        check.has(self, "codec", self.codec, "encode", "decode", kind="a codec such as Cast()")

    async def run(self, node: Node) -> None:
        """Mix and compute at the same time, then step on what was mixed; what is under way at the end is taken in."""
        x = node.params
        seed = int(node.keep("seed", torch.tensor([node.rng.integers(2**31)])))
        # Begun when a step ends, so that in a user's own loop, too, messages travel during the next forward pass.
        mixing = node.spawn(self._mix(node, x, node.step_count, seed))
        async for k in node.steps():
            g = await node.gradient(x)
            # Added, not copied: the forward pass may have moved batch-norm statistics since.
            x.add_(await mixing)
            await node.step(g)
            mixing = node.spawn(self._mix(node, x, k + 1, seed))
        x.add_(await mixing)

    async def _mix(self, node: Node, x: Tensor, round: int, seed: int) -> Tensor:
        """What this node gains in a round."""
        weights = self.topology.weights(node.rank, node.size, round)
        peers = self.topology.peers(node.rank, node.size, round)
        message = self.codec.encode(x, np.random.default_rng([seed, round]))
        own = self.codec.decode(message, x)
        for peer in peers:
            node.send(peer, message)
        # Halves are summed as floats: sums of many lose more than sending them does.
        gained = torch.zeros_like(own, dtype=torch.promote_types(own.dtype, torch.float32))
        for peer in peers:
            gained.add_(self.codec.decode(await node.receive(peer), own) - own, alpha=weights[peer])
        return gained
