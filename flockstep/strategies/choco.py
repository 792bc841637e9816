"""CHOCO-SGD: gossip in few bits that still agrees, because what a codec left out is sent later.

State of node i: x_i, its model; h_i, what the others believe it to be; s_i = sum_j w_ij h_j over itself and its
neighbours, which is all it needs of theirs.

    x_i <- x_i - eta * g_i(x_i)                                          the local step
    q_i  = Q(x_i - h_i);   h_i <- h_i + q_i;   s_i <- s_i + sum_j w_ij q_j
    x_i <- x_i + gamma * (s_i - h_i)                                     that is, gamma * sum_j w_ij (h_j - h_i)

Only the changes since the last round travel, so the codec's error goes with how fast models move and not with how large
they are: it vanishes as they settle. The mean of all nodes moves by their steps only, whatever the codec does.

Koloskova, Stich, Jaggi: decentralized stochastic optimization and gossip algorithms with compressed communication,
ICML 2019, arXiv 1902.00340.

Sends   one coded change to each neighbour, every step
Waits   for its neighbours, every step
Keeps   h_i and s_i
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flockstep import check
from flockstep.codecs.codec import Codec
from flockstep.codecs.raw import Raw
from flockstep.codecs.tail import sparing
from flockstep.node import Node
from flockstep.parts.suitability import CHANGES, codec_for
from flockstep.topologies import Ring, Topology


@dataclass(frozen=True, kw_only=True)
class Choco:
    """CHOCO-SGD: neighbours average at every step through any codec of changes, however coarse.

        x_i <- x_i - eta * g_i(x_i)
        q_i = Q(x_i - h_i);   h_i <- h_i + q_i;   s_i <- s_i + sum_j w_ij q_j
        x_i <- x_i + gamma * (s_i - h_i)

    h_i is what the neighbours believe x_i to be, s_i = sum_j w_ij h_j, Q the codec, w_ij the weights of the topology.
    What the codec leaves out of a message is in the next one.

    Koloskova, Stich, Jaggi: decentralized stochastic optimization and gossip algorithms with compressed communication,
    ICML 2019, arXiv 1902.00340.

    Args:
        topology: Which nodes are neighbours (see ``fs.topologies``). By default a ring.
        codec: How vectors become bytes (see ``fs.codecs``). By default in full. It carries changes: not ``Modular``.
        consensus: gamma, above 0 and at most 1: how much of the way towards its neighbours a node goes at a step. None:
            the most that is safe with this codec on any graph.

    Example:
        with fs.join(model, optimizer, fs.Choco(codec=fs.codecs.Stochastic(bits=4))):
            train(model, optimizer)  # your own loop
    """

    own_gradients: ClassVar[bool] = True

    topology: Topology = Ring()
    codec: Codec = Raw()
    consensus: float | None = None

    def __post_init__(self) -> None:
        check.has(self, "topology", self.topology, "peers", "weights", kind="a topology such as Ring()")
        codec_for(self, self.codec, CHANGES, such_as="Stochastic(bits=4)", instead="Stochastic(bits=8), or Gossip")
        if self.consensus is not None and check.positive(self, "consensus", self.consensus) > 1:
            raise ValueError(f"Choco.consensus must be at most 1, got {self.consensus}")

    async def run(self, node: Node) -> None:
        """Step, tell the neighbours what changed, go towards what they have told."""
        x = node.params
        # All start from the same model, so everybody knows what everybody believes. Halves add up as floats.
        start = x.to(torch.promote_types(x.dtype, torch.float32))
        h, s = node.keep("seen", start.clone()), node.keep("around", start.clone())
        quality = fidelity(self.codec, x)
        gamma = safe_step(quality) if self.consensus is None else self.consensus
        # Right on average is too much for a feedback loop when the noise is large: shrunk, the error always shrinks.
        shrink = quality if self.codec.unbiased else 1.0
        codec = sparing(self.codec, node)
        async for k in node.steps():
            await node.step(await node.gradient(x))
            w = self.topology.weights(node.rank, node.size, k)
            peers = self.topology.peers(node.rank, node.size, k)
            message = codec.encode((shrink * (x - h)).to(x.dtype), node.rng)
            for peer in peers:
                node.send(peer, message)
            q = codec.decode(message, torch.zeros_like(x))
            h += q
            s.add_(q, alpha=w[node.rank])
            for peer in peers:
                s.add_(codec.decode(await node.receive(peer), torch.zeros_like(x)), alpha=w[peer])
            x.add_(s - h, alpha=gamma)


def safe_step(quality: float) -> float:
    """The largest gamma with which disagreement cannot grow, for a codec that leaves at most r^2 = 1 - quality.

    With e = x - h before coding, and l an eigenvalue of I - W:   |x| <- (1 - gamma l) |x| + gamma l r |e|,
    |e| <- gamma l |x| + (1 + gamma l) r |e|, which shrinks while gamma l < (1 - r) / 2r; and l is at most 2.
    """
    left = math.sqrt(max(0.0, 1.0 - quality))
    return min(1.0, (1 - left) / (4 * left)) if left else 1.0


def fidelity(codec: Codec, like: Tensor) -> float:
    """How much of a random vector a codec keeps: cos^2 of the angle between it and what is decoded, 1 if all.

    For a codec that is right on average with relative variance v this is 1 / (1 + v), for one that keeps some
    coordinates their share of the squared norm: the paper's delta, as it turns out and not at its worst.
    """
    # Drawn on the host from a seed of its own: the same number on every node. A million coordinates tell enough.
    v = torch.from_numpy(np.random.default_rng(0).standard_normal(min(like.numel(), 1 << 20))).to(like)
    kept = codec.decode(codec.encode(v, np.random.default_rng(1)), torch.zeros_like(v)).double()
    squares = float(kept @ kept) * float(v.double() @ v.double())
    return float(kept @ v.double()) ** 2 / squares if squares else 1.0
