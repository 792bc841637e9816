"""What an attempt sends to each of the others, and what it makes of what they send; and one such task, the mean.

A mean goes straight to whoever sums it, not around a ring: of n nodes the j-th sums the j-th of n chunks, so every node
sends each other one's chunk there, and the sums of its own chunk to all. That is as many bytes as in a ring, 2 (n-1)/n
of the vector, in two steps instead of 2 (n-1), and all nodes' numbers meet at once, in the order of ranks. A vector so
short that this order of bytes does not matter goes whole to everybody, in one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from flockstep.backends.real.rounds.carrier.adder import Adder
from flockstep.backends.real.rounds.carrier.streams import LARGE_PIECE_BYTES, PIECE_BYTES, FrameKind, Garbage

Frame = tuple[FrameKind, int, memoryview]
_MOST_WHOLE, _MOST_MORE = 1024 * 1024, 16 * 1024
"""A vector travels whole up to so many bytes, if that is at most so many bytes more."""
_MUCH = 4 * 1024 * 1024
"""Bytes of data from which it goes in large pieces."""
_LEAD = 16 * 1024 * 1024
"""So many bytes go ahead of the sums: while the last of them are on their way, and are summed, sums are left to fill
the link with. No more, so that sums are sent on while they are still in a cache."""
_MOST_WAITING = 16 * 1024 * 1024
"""Bytes of one peer that may wait for those of others."""


class Task(Protocol):
    """One node's part in an attempt. All memory is this machine's; nothing here waits."""

    brings: str
    """What this node brings, in words: it must be the same on all."""

    def has_frame(self, peer: int) -> bool:
        """Whether there is something to send now."""

    def next_frame(self, peer: int) -> Frame:
        """It."""

    def has_sent(self, peer: int) -> bool:
        """Whether all has been given out that is for this peer."""

    def has_received(self, peer: int) -> bool:
        """Whether all is here that is from this peer."""

    def place(self, peer: int, kind: FrameKind, index: int, length: int) -> memoryview | None:
        """Memory for the body of a frame; None while there is no room; Garbage where it may not come now."""

    def take(self, peer: int, kind: FrameKind, index: int, body: memoryview) -> None:
        """What was to be there is there."""


def piece_bytes(nbytes: int) -> int:
    """How long each of the frames is, but for the last."""
    return PIECE_BYTES if nbytes < _MUCH else LARGE_PIECE_BYTES


def pieces(nbytes: int) -> int:
    """How many frames it takes."""
    return -(-nbytes // piece_bytes(nbytes))


def piece(data: memoryview, index: int) -> memoryview:
    """One of them."""
    length = piece_bytes(len(data))
    return data[index * length : (index + 1) * length]


def next_of(data: memoryview, expected: int, index: int, length: int) -> memoryview:
    """Where a piece goes; Garbage unless it is the one that must come now."""
    view = piece(data, index)
    if index != expected or len(view) != length or not length:
        raise Garbage("a piece came that is not the next")
    return view


class MeanTask:
    """``vector`` is flat and in this machine's memory; the mean is written to ``out``, of as many bytes."""

    def __init__(
        self, brings: str, vector: memoryview, dtype: torch.dtype, out: memoryview, rank: int, ranks: Sequence[int]
    ) -> None:
        self.brings = brings
        self._order = sorted(ranks)
        self._peers = [peer for peer in self._order if peer != rank]
        self._rank = rank
        n, size = len(self._order), len(vector) // dtype.itemsize
        self._is_whole = len(vector) <= _MOST_WHOLE and (n - 1) * (n - 2) / n * len(vector) <= _MOST_MORE
        ends = [j * size // n * dtype.itemsize for j in range(n + 1)]
        chunks = {r: slice(*ends[j : j + 2]) for j, r in enumerate(self._order)}
        if self._is_whole:
            chunks = dict.fromkeys(self._order, slice(0, len(vector)))
        self._to = {peer: vector[chunks[peer]] for peer in self._peers}
        self._own, self._sums = vector[chunks[rank]], out[chunks[rank]]
        self._from = {peer: out[chunks[peer]] for peer in self._peers}
        self._sent = dict.fromkeys(self._peers, 0)
        self._sums_sent = dict.fromkeys(self._peers, 0)
        self._summed = 0
        self._sums_received = dict.fromkeys(self._peers, 0)
        self._waiting: dict[int, deque[memoryview]] = {peer: deque() for peer in self._peers}
        """Of each peer, its pieces from ``_summed`` on."""
        self._free: list[Any] = []
        self._adder = Adder(dtype, len(vector))

    def _sums_to_send(self) -> int:
        return 0 if self._is_whole else pieces(len(self._own))

    def has_frame(self, peer: int) -> bool:
        more = not self._is_whole and self._sums_sent[peer] < self._summed
        return more or self._sent[peer] < pieces(len(self._to[peer]))

    def next_frame(self, peer: int) -> Frame:
        lead, ready = self._sent[peer] - self._sums_sent[peer], self._sums_sent[peer] < self._summed
        is_last = self._sent[peer] == pieces(len(self._to[peer]))
        if ready and not self._is_whole and (is_last or lead * piece_bytes(len(self._own)) >= _LEAD):
            index = self._sums_sent[peer]
            self._sums_sent[peer] += 1
            return FrameKind.SUM, index, piece(self._sums, index)
        index = self._sent[peer]
        self._sent[peer] += 1
        return FrameKind.OWN, index, piece(self._to[peer], index)

    def has_sent(self, peer: int) -> bool:
        own = self._sent[peer] == pieces(len(self._to[peer]))
        return own and self._sums_sent[peer] == self._sums_to_send()

    def has_received(self, peer: int) -> bool:
        own = self._summed + len(self._waiting[peer]) == pieces(len(self._own))
        return own and (self._is_whole or self._sums_received[peer] == pieces(len(self._from[peer])))

    def place(self, peer: int, kind: FrameKind, index: int, length: int) -> memoryview | None:
        if kind is FrameKind.SUM and not self._is_whole:
            return next_of(self._from[peer], self._sums_received[peer], index, length)
        if kind is not FrameKind.OWN:
            raise Garbage("this frame has no place in a mean")
        into = next_of(self._sums, self._summed + len(self._waiting[peer]), index, length)
        length = piece_bytes(len(self._own))
        if len(self._waiting[peer]) * length >= _MOST_WAITING:
            return None
        # The one that was used last: it is still in the cache.
        room: NDArray[np.uint8] = self._free.pop() if self._free else np.empty(length, np.uint8)
        return room.data[: len(into)]

    def take(self, peer: int, kind: FrameKind, index: int, body: memoryview) -> None:
        if kind is FrameKind.SUM:
            self._sums_received[peer] += 1
            return
        self._waiting[peer].append(body)
        while all(self._waiting.values()):
            theirs = {peer: waiting.popleft() for peer, waiting in self._waiting.items()}
            mine, out = piece(self._own, self._summed), piece(self._sums, self._summed)
            self._adder.mean([mine if r == self._rank else theirs[r] for r in self._order], out)
            self._free += [view.obj for view in theirs.values()]
            self._summed += 1
