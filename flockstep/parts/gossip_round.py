"""A round of gossip: every node tells all its neighbours, and moves towards what they tell.

    gained_i = sum_j w_ij r_ij (Q(v_j) - Q(v_i))

Each pair takes the difference of the same two decoded vectors, and weights are symmetric: what all nodes gain adds up
to nothing, whatever the codec does; r is 1 where it is exact (see codec_trust.py). A neighbour that cannot read all of
a message says so, and gets what is missing in full, but as the message has it: Q(v_i) is the same to everybody.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flockstep.codecs.coder import Coder, asks_again
from flockstep.message import NOTHING, Message
from flockstep.node import Node
from flockstep.parts.codec_trust import believed, error, marked, unmarked
from flockstep.parts.partners import in_full
from flockstep.topologies import Topology


async def gained(
    node: Node, topology: Topology, round: int, v: Tensor, coder: Coder, rng: np.random.Generator | None = None
) -> Tensor:
    """What ``v`` gains in a round, in float32 or better. It is looked at before the first wait only."""
    weights = topology.weights(node.rank, node.size, round)
    peers = topology.peers(node.rank, node.size, round)
    wide = torch.promote_types(v.dtype, torch.float32)
    if not peers:
        return torch.zeros_like(v, dtype=wide)
    message = coder.write(v, rng)
    own = coder.own(message, v)
    near = v.clone() if coder.mends else own
    own_error = error(own, v) if coder.mends else 0.0
    for peer in peers:
        node.send(peer, marked(message, own_error) if coder.mends else message)
    # Halves are summed as floats: sums of many lose more than sending them does.
    total = torch.zeros_like(own, dtype=wide)

    def add(peer: int, vector: Tensor, their_error: float) -> None:
        difference = vector - own
        total.add_(difference, alpha=weights[peer] * believed(difference, own_error + their_error))

    unread = {}
    for peer in peers:
        their_error, _, inner = (
            unmarked(await node.receive(peer)) if coder.mends else (0.0, 0, await node.receive(peer))
        )
        read = coder.read(inner, near)
        if isinstance(read, Message):
            unread[peer] = their_error
        else:
            add(peer, read.vector, their_error)
        if coder.mends:
            node.send(peer, read if isinstance(read, Message) else NOTHING)
    for peer in peers if coder.mends else ():
        verdict = await node.receive(peer)
        if asks_again(verdict):
            node.send(peer, coder.mend(own, message, verdict))
    for peer, their_error in unread.items():
        add(peer, in_full(coder.read(await node.receive(peer), near), node, peer), their_error)
    return total
