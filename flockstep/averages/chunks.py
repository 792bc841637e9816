"""The mean in few bits: each node takes the mean of one chunk of all vectors, and gives it to all.

    gather    node i gives chunk k of its vector to the k-th taker, coded
    spread    the k-th taker gives the mean of what it got to every node, coded

Two exchanges. In an elastic run a node may be lost before, between and within them, and others may come. Therefore

 1. every message of a gather says for which takers its sender has cut its vector, and which of its lives this is;
 2. if not all have cut alike, or a taker is missing in the gather or in the spread, the average is begun again, cut for
    those who have brought something. What had been brought until then is used by no node;
 3. who came while the average was under way has none of its own to bring: it says so, and takes what the others have.
    If none of them is left, those who came bring what they were given.

All nodes that end an exchange have been told the same about it (who is there, how each has cut), and decide by nothing
else: so they decide alike. ``node.view`` is where the cut begins, and may differ: means on other channels move it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from flockstep.codecs.codec import Codec
from flockstep.codecs.tail import trained_of, with_tail, without_tail
from flockstep.message import NOTHING, Message
from flockstep.node import Node

_LIFE = Struct("<q")
"""A node's incarnation, as it travels."""
_NO_CHUNK = Message.of_bytes(b"", "no chunk")
"""Of a node that is there, to one that takes no chunk, or in a spread if it takes none itself."""
_LISTENS = Message.of_bytes(b"", "listens")
"""Of a node that is there, and brings nothing to this average."""


class ChunkCoder(Protocol):
    """How a node codes its chunks, and the mean of the one it takes."""

    @property
    def codec(self) -> Codec:
        """What decodes its messages."""

    def begin(self, own: slice, takers: int) -> None:
        """The vector is cut for so many; this node takes a slice of it. What was coded before came to nothing."""

    def encode_chunk(self, chunk: Tensor, begin: int) -> Message:
        """A chunk of this node's vector, which begins there."""

    def encode_mean(self, mean: Tensor, begin: int) -> Message:
        """The mean of the chunk that begins there."""

    def settle(self, brought: int) -> None:
        """All that was coded since ``begin`` has arrived; the mean is of so many vectors."""


async def mean_of_chunks(v: Tensor, node: Node, channel: str, coder: ChunkCoder) -> Tensor:
    """A round of a coded mean: begun again, in an elastic run, as often as a taker is lost in it."""
    average = _Average(v, node, coder)
    while True:
        gathered = await node.exchange(average.chunks(), f"{channel}/gather")
        if average.goes_on(gathered):
            means = await node.exchange(average.means(gathered), f"{channel}/spread")
            if average.is_done(means):
                return average.result(means)


class _Part(NamedTuple):
    """What one taker takes: a chunk of what trains, and one of the statistics, which go in full."""

    begin: int
    chunk: Tensor
    tail: Tensor


class _Note(NamedTuple):
    """What the messages of a gather say of their sender."""

    incarnation: int
    takers: tuple[int, ...]


class _Average:
    """One node's part in one average."""

    def __init__(self, v: Tensor, node: Node, coder: ChunkCoder) -> None:
        self._node, self._coder = node, coder
        # It may have to be brought again, whatever its owner does with it meanwhile.
        self._v = v.clone() if node.elastic else v
        self._brings, self._brought = True, node.size
        self._cut(node.view)

    def _cut(self, takers: tuple[int, ...]) -> None:
        self._takers, trained = takers, trained_of(self._v, self._node)
        chunks, tails = self._v[:trained].tensor_split(len(takers)), self._v[trained:].tensor_split(len(takers))
        begins = accumulate((chunk.numel() for chunk in chunks[:-1]), initial=0)
        self._parts = dict(zip(takers, map(_Part, begins, chunks, tails), strict=True))

    def chunks(self) -> list[Message]:
        """For every node its chunk, if it takes one; and for whom else the vector is cut."""
        own = self._parts.get(self._node.rank)
        self._coder.begin(slice(own.begin, own.begin + own.chunk.numel()) if own else slice(0), len(self._takers))
        ranks = range(self._node.size)
        return [self._noted(self._chunk_for(rank)) if self._brings else _LISTENS for rank in ranks]

    def _chunk_for(self, rank: int) -> Message:
        if rank not in self._parts:
            return _NO_CHUNK
        begin, chunk, tail = self._parts[rank]
        return with_tail(self._coder.encode_chunk(chunk, begin), tail)

    def goes_on(self, gathered: Sequence[Message]) -> bool:
        """Whether all takers have all they need; if not, the vector has been cut anew."""
        if not self._node.elastic:
            return True
        own, self._brought = gathered[self._node.rank], sum(map(_brings, gathered))
        # Who came since may find there what it brought in an earlier life.
        self._brings = _brings(own) and self._note_in(own).incarnation == self._node.incarnation
        cuts = {self._note_in(message).takers for message in gathered if _brings(message)}
        if len(cuts) != 1:
            self._begin_again(gathered)
            return False
        # Of one that listens, the cut was a guess.
        self._cut(cuts.pop())
        return self._has_all(gathered)

    def means(self, gathered: Sequence[Message]) -> list[Message]:
        """For every node the mean of the chunk that this one takes."""
        if not self._brings:
            return [_LISTENS] * self._node.size
        return [self._mean(gathered) if self._node.rank in self._parts else _NO_CHUNK] * self._node.size

    def _mean(self, gathered: Sequence[Message]) -> Message:
        begin, *mine = self._parts[self._node.rank]
        # Halves are summed as floats: sums of many lose more than sending them does.
        totals = [torch.zeros_like(part, dtype=torch.promote_types(part.dtype, torch.float32)) for part in mine]
        for message in filter(_brings, gathered):
            for total, part in zip(totals, self._read(self._unnoted(message), *mine), strict=True):
                total += part
        mean, tail = ((total / self._brought).to(self._v.dtype) for total in totals)
        return with_tail(self._coder.encode_mean(mean, begin), tail)

    def is_done(self, means: Sequence[Message]) -> bool:
        """Whether the means of all chunks are there; if not, the vector has been cut anew."""
        return not self._node.elastic or self._has_all(means)

    def result(self, means: Sequence[Message]) -> Tensor:
        """The mean; what was coded for it has arrived."""
        parts = [self._read(means[taker], chunk, tail) for taker, (_, chunk, tail) in self._parts.items()]
        if self._brings:
            self._coder.settle(self._brought)
        return torch.cat([part for part, _ in parts] + [rest for _, rest in parts])

    def _read(self, message: Message, like: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        inner, rest = without_tail(message, like, tail.numel())
        return self._coder.codec.decode(inner, like), rest

    # In elastic runs ------------------------------------------------------------------------------------------------

    def _has_all(self, messages: Sequence[Message]) -> bool:
        has_all = all(_brings(messages[taker]) for taker in self._takers)
        if not has_all:
            self._begin_again(messages)
        return has_all

    def _begin_again(self, messages: Sequence[Message]) -> None:
        """Cut for those who bring something; if none of them is left, for those who came since."""
        bring = tuple(rank for rank, message in enumerate(messages) if _brings(message))
        listen = tuple(rank for rank, message in enumerate(messages) if message.codec == _LISTENS.codec)
        self._brings = self._brings or not bring
        self._cut(bring or listen)

    def _noted(self, message: Message) -> Message:
        """A message, and behind it which life of its sender has cut it for whom."""
        if not self._node.elastic:
            return message
        mask = sum(1 << rank for rank in self._takers).to_bytes(_mask_bytes(self._node), "little")
        note = torch.frombuffer(bytearray(_LIFE.pack(self._node.incarnation) + mask), dtype=torch.uint8)
        data = torch.cat([message.data, note.to(message.data.device)])
        return Message(data, message.codec, message.shape, message.dtype)

    def _unnoted(self, message: Message) -> Message:
        if not self._node.elastic:
            return message
        edge = message.data.numel() - _LIFE.size - _mask_bytes(self._node)
        return Message(message.data[:edge], message.codec, message.shape, message.dtype)

    def _note_in(self, message: Message) -> _Note:
        note = message.data[-_LIFE.size - _mask_bytes(self._node) :].cpu().numpy().tobytes()
        mask = int.from_bytes(note[_LIFE.size :], "little")
        takers = tuple(rank for rank in range(self._node.size) if mask >> rank & 1)
        return _Note(_LIFE.unpack(note[: _LIFE.size])[0], takers)


def _mask_bytes(node: Node) -> int:
    """A bit for every node."""
    return -(-node.size // 8)


def _brings(message: Message) -> bool:
    """Whether its sender is there, and brings something to this average."""
    return message.codec not in (NOTHING.codec, _LISTENS.codec)
