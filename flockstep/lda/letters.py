"""What workers and the server of ``DPSVI`` write to each other: an update of topics, and a few numbers."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
import torch

from flockstep.lda import wire
from flockstep.lda.topics import Topics, Update
from flockstep.message import Message

_NUMBERS = struct.Struct("<qqq?")
_CODEC = "topics"


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A push of a worker, or the reply to one."""

    number: int
    """Of the push, counted by its worker from 1; 0 greets."""
    done: int
    """Batches of all workers that the server has folded, as far as the writer knows."""
    batches: int = 0
    """How many of them are in this update."""
    last: bool = False
    """Whether the worker goes no further, and has no use for what others did."""
    update: Update

    @property
    def whole(self) -> bool:
        """Whether the update is a table of its own, which leaves nothing of the one before."""
        return self.update.log_decay == -math.inf


def written(letter: Letter, *, n_words: int, bits: int, rng: np.random.Generator, least: float) -> Message:
    """As it travels."""
    numbers = np.frombuffer(_NUMBERS.pack(letter.number, letter.done, letter.batches, letter.last), np.uint8)
    data = np.concatenate([numbers, wire.encode(letter.update, n_words=n_words, bits=bits, rng=rng, least=least)])
    return Message(torch.from_numpy(data), _CODEC, (data.size,), torch.uint8)


def read(message: Message, *, n_words: int, n_topics: int) -> Letter:
    """As it came; ValueError where it is no letter."""
    data = message.data.numpy()
    if message.codec != _CODEC or data.size < _NUMBERS.size:
        raise ValueError(f"a letter about topics cannot be read from {data.size} bytes of {message.codec}")
    number, done, batches, last = _NUMBERS.unpack(data[: _NUMBERS.size].tobytes())
    if min(number, done, batches) < 0:
        raise ValueError("a letter about topics has negative numbers")
    update = wire.decode(data[_NUMBERS.size :], n_words=n_words, n_topics=n_topics)
    return Letter(number=number, done=done, batches=batches, last=last, update=update)


def nothing(n_topics: int) -> Update:
    """The update that changes nothing."""
    empty = np.empty((0, n_topics), np.float32)
    return Update(log_decay=0.0, words=np.empty(0, np.int32), statistics=empty, totals=np.zeros(n_topics))


def whole(topics: Topics) -> Update:
    """A table as an update that puts it in the place of any other."""
    words = np.arange(topics.n_words, dtype=np.int32)
    return Update(log_decay=-math.inf, words=words, statistics=topics.settle().copy(), totals=topics.totals.copy())
