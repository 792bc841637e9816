"""Two nodes at a time: who meets whom, and what each gains when a pair averages.

A pair average is applied as a difference, on both sides from the same two decoded vectors:

    d = r (Q(v_j) - Q(v_i)) / 2;      v_i <- v_i + d;      v_j <- v_j - d

so that v_i + v_j stays what it was whatever the codec does; r is 1 where the codec is exact (see codec_trust.py).
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from flockstep.codecs.coder import Coder, Read, asks_again
from flockstep.errors import CodecRange
from flockstep.message import NOTHING, Message
from flockstep.node import Node
from flockstep.parts.codec_trust import believed, error, marked, unmarked
from flockstep.topologies import Complete, Topology


def partners(node: Node, topology: Topology) -> list[int]:
    """The neighbours that live, in an order of this node's own."""
    alive = node.peers()
    if node.rank < node.size and not isinstance(topology, Complete):
        near = set(topology.peers(node.rank, node.size))
        # Those who came late have no place in the graph: they are everybody's neighbours.
        alive = tuple(peer for peer in alive if peer in near or peer >= node.size)
    return [int(peer) for peer in node.rng.permutation(alive)]


def matching(seed: int, round: int, size: int) -> dict[int, int]:
    """Who meets whom in a round: the same answer on every node; with an odd number one stays alone."""
    order = np.random.default_rng([seed, round]).permutation(size).tolist()
    pairs = list(zip(order[0::2], order[1::2], strict=False))
    return dict(pairs) | {b: a for a, b in pairs}


async def swap(node: Node, peer: int, v: Tensor, coder: Coder) -> Tensor:
    """What ``v`` gains from a peer that calls this too: two-sided, each waits for the other."""
    message = coder.write(v)
    decoded = coder.own(message, v)
    own_error = error(decoded, v) if coder.mends else 0.0
    node.send(peer, marked(message, own_error) if coder.mends else message)
    their_error, read = _read(await node.receive(peer), v, coder)
    # Where a coder may have been out of reach, both say whether they could read it all.
    if coder.mends:
        node.send(peer, read if isinstance(read, Message) else NOTHING)
        verdict = await node.receive(peer)
        if asks_again(verdict):
            message = coder.mend(v, message, verdict)
            decoded = coder.own(message, v)
            own_error = error(decoded, v)
            node.send(peer, marked(message, own_error))
        if isinstance(read, Message):
            their_error, read = _read(await node.receive(peer), v, coder)
    node.count("exchanges")
    difference = in_full(read, node, peer).sub_(decoded)
    return difference.mul_(believed(difference, own_error + their_error) / 2)


def _read(message: Message, near: Tensor, coder: Coder) -> tuple[float, Read | Message]:
    their_error, _, inner = unmarked(message) if coder.mends else (0.0, 0, message)
    return their_error, coder.read(inner, near)


def in_full(read: Read | Message, node: Node, peer: int) -> Tensor:
    """The vector that was read; CodecRange if some of it could not be."""
    if isinstance(read, Message):
        raise CodecRange(f"node {node.rank} cannot read what node {peer} sent, not even when mended", rank=node.rank)
    return read.vector
