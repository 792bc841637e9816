"""Decentralised parallel SGD (D-PSGD): every step, each node averages with its neighbours only.

    x_i <- sum_j w_ij (x_j - eta * g_j(x_j))               every step: step, then mix
    x_i <- sum_j w_ij x_j - eta * g_i(x_i)                 with ``overlap=True``, as the paper has it

Overlapped, messages travel while the gradient is computed, and it is computed at a model that nobody has mixed with
its last step yet. At learning rates near the highest that one node stands, that lost to training alone.

Nodes drift apart as far as the graph is slow to mix. The sum is applied as  x_i <- x_i + sum_j w_ij (Q(x_j) - Q(x_i)):
the weights are symmetric, so the mean of all nodes moves by their steps only, exactly, whatever the codec does.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017,
arXiv 1705.09056.

Sends   one coded model to each neighbour, every step
Waits   for its neighbours, every step; overlapped, for what takes longer than a gradient
Keeps   one number, from which every round's codec draws: a resumed run says again what was under way; with
        ``Modular`` the distances seen
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flockstep import check
from flockstep.codecs.codec import Codec
from flockstep.codecs.coder import coder_for
from flockstep.codecs.raw import Raw
from flockstep.node import Node
from flockstep.parts.gossip_round import gained
from flockstep.parts.suitability import MODELS, codec_for
from flockstep.topologies import Ring, Topology


@dataclass(frozen=True, kw_only=True)
class Gossip:
    """D-PSGD: every node averages with its neighbours at every step.

        x_i <- sum_j w_ij (x_j - eta * g_j(x_j))                   step, then mix
        x_i <- sum_j w_ij x_j - eta * g_i(x_i)                     with ``overlap=True``, as in the paper

    w_ij are the weights of the topology. Every node ends with a model of its own.

    Lian, Zhang, Zhang, Hsieh, Zhang, Liu: can decentralized algorithms outperform centralized algorithms?, NeurIPS
    2017, arXiv 1705.09056.

    Args:
        topology: Which nodes are neighbours (see ``fs.topologies``). By default a ring.
        codec: How vectors become bytes (see ``fs.codecs``). By default in full. It carries models: not ``TopK``.
        overlap: True: messages travel while the next gradient is computed, at a model that does not have them yet.
            False: a node waits for its neighbours after every step.

    Example:
        with fs.join(model, optimizer, fs.Gossip(topology=fs.topologies.Exponential())):
            train(model, optimizer)  # your own loop
    """

    own_gradients: ClassVar[bool] = True

    topology: Topology = Ring()
    codec: Codec = Raw()
    overlap: bool = False

    def __post_init__(self) -> None:
        check.has(self, "topology", self.topology, "peers", "weights", kind="a topology such as Ring()")
        codec_for(self, self.codec, MODELS, such_as="Cast()", instead="Choco, which sends changes, or Modular(bits=8)")

    async def run(self, node: Node) -> None:
        """Step and mix in turn, or at the same time; then what is under way at the end is taken in."""
        x, coder = node.params, coder_for(self.codec, node, node.params, by_rounds=True)
        seed = int(node.keep("seed", torch.tensor([node.rng.integers(2**31)])))

        async def mixed(round: int) -> Tensor:
            return await gained(node, self.topology, round, x, coder, np.random.default_rng([seed, round]))

        def take_in(news: Tensor) -> None:
            # Added, not copied: the forward pass may have moved batch-norm statistics since.
            x.add_(news)
            coder.settle()

        if not self.overlap:
            async for k in node.steps():
                await node.step(await node.gradient(x))
                take_in(await mixed(k))
            return
        # Begun when a step ends, so that in a user's own loop, too, messages travel during the next forward pass.
        under_way = node.spawn(mixed(node.step_count))
        async for k in node.steps():
            g = await node.gradient(x)
            take_in(await under_way)
            await node.step(g)
            under_way = node.spawn(mixed(k + 1))
        take_in(await under_way)
