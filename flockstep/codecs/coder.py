"""A codec at work between nodes that move: one per node, with what it has learned.

For most codecs there is nothing to learn. ``Modular`` needs to know how far apart sender and receiver are: a coder
keeps the distances it sees, per block, and codes for 1.5 times the largest of late. Where that was too little, the
receiver says which blocks it cannot read, and gets these exactly. Statistics go in full (see tail.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flockstep.codecs.blocks.blocks import BLOCK
from flockstep.codecs.codec import Codec, sound
from flockstep.codecs.lattice.lattice import Plan
from flockstep.codecs.modular import Modular
from flockstep.codecs.raw import Raw
from flockstep.codecs.tail import sparing, with_tail, without_tail
from flockstep.errors import CodecRange
from flockstep.message import Message
from flockstep.node import Node

_AGAIN, _MENDED = "again", "mended"
_MARGIN, _FADING = 1.5, 0.9


class Read(NamedTuple):
    """A vector that could be read in full."""

    vector: Tensor
    reach: Tensor | None
    """Per block, how far its sender lies from the reader at most; None where no codec cares."""


class _Found(NamedTuple):
    vector: Tensor
    wrong: Tensor | None
    """Per block, where some cannot be read."""
    distance: Tensor
    """Per block, how far it lies from the receiver's own."""
    scale: Tensor | float
    """Per block, how far what was read may lie from what was sent."""


def coder_for(codec: Codec, node: Node, like: Tensor, *, of: str = "", by_rounds: bool = False) -> Coder:
    """A coder for vectors like this one; a node that sends several kinds of them says ``of`` which this one is.

    ``by_rounds``: what it sees in a round counts from ``settle`` on, so that a run that is resumed in the middle of one
    says the same again.
    """
    if not isinstance(codec, Modular):
        return Coder(sparing(codec, node), node)
    inner = _Tuned(codec, node, like[: node.trained], of, by_rounds)
    return inner if node.trained >= like.numel() else _WithTail(inner, node)


def asks_again(reply: Message) -> bool:
    """Whether a receiver could not read all it got."""
    return reply.codec == _AGAIN


class Coder:
    """Any codec that needs no repair."""

    mends: bool = False
    """Whether a receiver may be unable to read all of a message, and ask again."""

    def __init__(self, codec: Codec, node: Node) -> None:
        self._codec, self._node = codec, node

    def write(self, v: Tensor, rng: np.random.Generator | None = None) -> Message:
        """The message for a peer; drawn from the node's own stream unless another is given."""
        return self._codec.encode(v, self._node.rng if rng is None else rng)

    def read(self, message: Message, near: Tensor) -> Read | Message:
        """The vector in a message; or what to reply instead, to get what cannot be read."""
        return Read(self._codec.decode(message, near), None)

    def own(self, message: Message, v: Tensor) -> Tensor:
        """What receivers read in the message for ``v``."""
        return self._codec.decode(message, v)

    def mend(self, v: Tensor, message: Message, request: Message) -> Message:
        """The message again, with what could not be read."""
        raise NotImplementedError(f"a message of {message.codec} is never asked for again")

    def exact(self, v: Tensor) -> Message:
        """The vector itself, for one who cannot read it otherwise."""
        self._node.count("sent exactly")
        return Raw().encode(v, self._node.rng)

    def reply(self, v: Tensor, read: Read) -> Message:
        """The message for the peer whose message was read just now."""
        return self.write(v)

    def settle(self) -> None:
        """A round is over: what was seen in it counts."""


class _WithTail(Coder):
    """A coder of what trains that is tuned, with the statistics behind it as they are."""

    mends = True

    def __init__(self, inner: _Tuned, node: Node) -> None:
        self._inner, self._node, self._trained = inner, node, node.trained

    def write(self, v: Tensor, rng: np.random.Generator | None = None) -> Message:
        return with_tail(self._inner.write(v[: self._trained], rng), v[self._trained :])

    def read(self, message: Message, near: Tensor) -> Read | Message:
        inner, tail = self._parted(message, near)
        read = self._inner.read(inner, near[: self._trained])
        return read if isinstance(read, Message) else Read(torch.cat([read.vector, tail]), read.reach)

    def own(self, message: Message, v: Tensor) -> Tensor:
        inner, tail = self._parted(message, v)
        return torch.cat([self._inner.own(inner, v[: self._trained]), tail])

    def mend(self, v: Tensor, message: Message, request: Message) -> Message:
        inner, _ = self._parted(message, v)
        return with_tail(self._inner.mend(v[: self._trained], inner, request), v[self._trained :])

    def reply(self, v: Tensor, read: Read) -> Message:
        return with_tail(self._inner.reply(v[: self._trained], read), v[self._trained :])

    def settle(self) -> None:
        self._inner.settle()

    def _parted(self, message: Message, like: Tensor) -> tuple[Message, Tensor]:
        return without_tail(message, like[: self._trained], like.numel() - self._trained)


class _Tuned(Coder):
    """``Modular`` with scales from the distances seen."""

    _codec: Modular
    mends = True

    def __init__(self, codec: Modular, node: Node, like: Tensor, of: str, by_rounds: bool) -> None:
        super().__init__(codec, node)
        self._plan = Plan(like.numel(), codec.bits)
        self._seen = node.keep(f"{of}: distances seen" if of else "distances seen", torch.zeros(self._plan.blocks))
        self._lately, self._by_rounds = torch.zeros_like(self._seen), by_rounds
        self._engine = codec.runs_on(like)
        self._compile(like)

    def _compile(self, like: Tensor) -> None:
        # Now, and not in the middle of the first exchange, which others would have to wait for, or do without.
        block = torch.zeros(BLOCK, dtype=like.dtype, device=like.device)
        self._codec.read(self._codec.encode(block, np.random.default_rng(0), reach=torch.ones(1)), block)

    def write(self, v: Tensor, rng: np.random.Generator | None = None) -> Message:
        if v.numel() != self._plan.count:
            raise ValueError(f"Modular knows distances of {self._plan.count} coordinates, got {v.numel()} to send")
        if not bool(self._seen.any()):
            # Nobody knows yet how far apart nodes are: one exact message tells.
            return self.exact(v)
        # A block that has stood still so far may not do so for ever.
        return self._coded(v, _MARGIN * torch.maximum(self._seen, 0.1 * self._seen.mean()), rng)

    def settle(self) -> None:
        # Once a round, however many were met in it: else the furthest of many neighbours would be forgotten at once.
        torch.maximum(_FADING * self._seen, self._lately, out=self._seen)
        self._lately.zero_()

    def reply(self, v: Tensor, read: Read) -> Message:
        return self.write(v) if read.reach is None else self._coded(v, read.reach)

    def _coded(self, v: Tensor, reach: Tensor, rng: np.random.Generator | None = None) -> Message:
        self._node.count(f"coded by {self._engine}")
        return self._codec.encode(v, self._node.rng if rng is None else rng, reach=reach)

    def read(self, message: Message, near: Tensor) -> Read | Message:
        found = self._find(message, near)
        if found.wrong is not None:
            self._node.count("blocks out of reach", int(found.wrong.sum()))
            return Message(found.wrong.to(torch.uint8).cpu(), _AGAIN, (found.wrong.numel(),), torch.uint8)
        distance = found.distance.cpu()
        torch.maximum(self._lately, distance, out=self._lately)
        if not self._by_rounds:
            self.settle()
        # The sender's own vector lies a little further than what was read of it.
        return Read(found.vector, distance + found.scale)

    def own(self, message: Message, v: Tensor) -> Tensor:
        found = self._find(message, v)
        if found.wrong is not None:
            raise CodecRange(f"Modular cannot code values as large as {float(v.abs().max()):.9g} in {v.dtype}")
        return found.vector

    def mend(self, v: Tensor, message: Message, request: Message) -> Message:
        wrong = request.data.bool()
        if wrong.numel() != self._plan.blocks:
            raise ValueError(f"asked again for {wrong.numel()} blocks, a vector has {self._plan.blocks}")
        exact = v.detach().flatten()[self._coordinates(wrong, v)].contiguous().view(torch.uint8)
        if not self._by_rounds:
            # What was too far must count as seen, or the next message would be as short. Where both sides read in every
            # round, this one sees the distance for itself.
            self._seen[wrong] = torch.clamp(2 * self._seen[wrong], min=float(self._seen.max()))
        data = torch.cat([request.data.to(v.device), message.data.to(v.device), exact])
        return Message(data, _MENDED, message.shape, message.dtype)

    def _find(self, message: Message, near: Tensor) -> _Found:
        if message.codec == Raw.name:
            vector = Raw().decode(message, near)
            return _Found(vector, None, self._distances(vector, near), 0.0)
        if message.codec == _MENDED:
            return self._find_mended(message, near)
        reading = self._codec.read(message, near)
        exponents = self._plan.split(message.data)[1].cpu()
        wrong = None if bool(reading.right.all()) else ~reading.right
        return _Found(
            reading.vector, wrong, reading.distance, torch.ldexp(torch.ones(exponents.numel()), exponents.int())
        )

    def _find_mended(self, message: Message, near: Tensor) -> _Found:
        blocks, coded = self._plan.blocks, self._plan.nbytes
        wrong = message.data[:blocks].bool().cpu()
        inner = Message(message.data[blocks : blocks + coded].clone(), self._codec.name, message.shape, message.dtype)
        found = self._find(inner, near)
        flat = found.vector.view(-1)
        place = self._coordinates(wrong, flat)
        exact = message.data[blocks + coded :].to(near.device, copy=True).view(message.dtype)
        if exact.numel() != int(place.sum()):
            raise ValueError(f"a mended message brings {exact.numel()} numbers for {int(place.sum())} coordinates")
        flat[place] = sound(self._codec, exact)
        missing = None if found.wrong is None else found.wrong.cpu() & ~wrong
        still = missing if missing is not None and bool(missing.any()) else None
        return _Found(found.vector, still, self._distances(found.vector, near), found.scale)

    def _coordinates(self, wrong: Tensor, v: Tensor) -> Tensor:
        return wrong.to(v.device).repeat_interleave(BLOCK)[: self._plan.count]

    def _distances(self, vector: Tensor, near: Tensor) -> Tensor:
        padded = torch.zeros(self._plan.blocks * BLOCK, device=near.device)
        padded[: self._plan.count] = (vector - near).detach().abs().flatten()
        return padded.view(-1, BLOCK).amax(1) if self._plan.count else padded[: math.ceil(self._plan.blocks)]
