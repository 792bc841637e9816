"""Two nodes at a time: who meets whom, and what each gains when a pair averages.

A pair average is applied as a difference, on both sides from the same two decoded vectors:

    d = (Q(v_j) - Q(v_i)) / 2;      v_i <- v_i + d;      v_j <- v_j - d

so that v_i + v_j stays what it was whatever the codec does, and averages that overlap need no lock.

Batch-norm statistics are no sum of steps, and differences that are added late could carry a variance below zero: a node
goes half the way to its partner's, from wherever its own are then.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from flockstep.errors import CodecRange, LostPeer
from flockstep.message import NOTHING, Message
from flockstep.node import Node
from flockstep.parts.codecs.coder import Coder, Read, asks_again
from flockstep.parts.topologies import Complete, Topology


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


async def gain(node: Node, topic: str, topology: Topology, sent: Tensor, ways: Coder) -> Tensor | None:
    """What ``sent`` gains from the first neighbour that answers, whose handler is ``meet``; None if nobody does.

    Where it has statistics: the neighbour's. It is meant for ``take``.
    """
    for peer in partners(node, topology):
        try:
            message = ways.write(sent)
            reply = await node.ask(peer, topic, message)
            if asks_again(reply):
                message = ways.mend(sent, message, reply)
                reply = await node.ask(peer, topic, message)
            if asks_again(reply):
                # Others have met it in between, and it is further away by now.
                message = ways.exact(sent)
                reply = await node.ask(peer, topic, message)
        except LostPeer:
            node.count("partners lost")
            continue
        # It knew the distance when it chose its scale, so that this can be read; but nothing is taken on trust.
        theirs = in_full(ways.read(reply, sent), node, peer)
        node.count("exchanges")
        _half_of_the_way(theirs[: node.trained], ways.own(message, sent)[: node.trained])
        return theirs
    return None


def take(node: Node, x: Tensor, shown: Tensor, began: Tensor, gained: Tensor | None) -> None:
    """Bring together what ``x`` has learned since it ``began`` and what came to the copy that others see."""
    trained = node.trained
    with node.undisturbed():
        if gained is not None:
            shown[:trained].add_(gained[:trained])
            x[trained:].lerp_(gained[trained:], 0.5)
        # In this order, a node that met nobody is where it was, to the bit.
        x[:trained].add_(shown[:trained] - began[:trained])
        shown.copy_(x)
    began.copy_(x)


def meet(v: Tensor, ways: Coder, message: Message) -> Message:
    """The other side of ``gain``, for a handler: give half of the difference away, and say what there was."""
    read = ways.read(message, v)
    if isinstance(read, Message):
        return read
    reply = ways.reply(v, read)
    v.add_(_half_of_the_way(read.vector, ways.own(reply, v)))
    return reply


def meet_to_the_end(node: Node, topic: str, v: Tensor, ways: Coder, x: Tensor) -> None:
    """A program is about to return, and others may still come: what they bring is its last word ``x``, too."""

    def answer(peer: int, message: Message) -> Message:
        reply = meet(v, ways, message)
        x.copy_(v)
        return reply

    node.answer(topic, answer)
    # Somebody may have come after the program's last look, and before this handler was there.
    with node.undisturbed():
        x.copy_(v)


async def swap(node: Node, peer: int, v: Tensor, ways: Coder) -> Tensor:
    """What ``v`` gains from a peer that calls this too: two-sided, each waits for the other."""
    message = ways.write(v)
    node.send(peer, message)
    read = ways.read(await node.receive(peer), v)
    # Where a coder may have been out of reach, both say whether they could read it all.
    if ways.mends:
        node.send(peer, read if isinstance(read, Message) else NOTHING)
        verdict = await node.receive(peer)
        if asks_again(verdict):
            message = ways.mend(v, message, verdict)
            node.send(peer, message)
        if isinstance(read, Message):
            read = ways.read(await node.receive(peer), v)
    node.count("exchanges")
    return _half_of_the_way(in_full(read, node, peer), ways.own(message, v))


def _half_of_the_way(theirs: Tensor, own: Tensor) -> Tensor:
    # In what was decoded, which nobody else has: fresh memory for a large model takes longer than the arithmetic.
    return theirs.sub_(own).div_(2)


def in_full(read: Read | Message, node: Node, peer: int) -> Tensor:
    """The vector that was read; CodecRange if some of it could not be."""
    if isinstance(read, Message):
        raise CodecRange(f"node {node.rank} cannot read what node {peer} sent, not even when mended", rank=node.rank)
    return read.vector
