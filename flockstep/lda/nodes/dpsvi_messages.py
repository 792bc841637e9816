"""What workers and the server of ``DPSVI`` write to each other: an update of topics, and a few numbers."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
import torch

from flockstep.lda.core.topics import Topics, Update
from flockstep.lda.nodes import update_codec
from flockstep.lda.nodes.pending_update import Page
from flockstep.message import Message

_NUMBERS = struct.Struct("<qqq?")
_CODEC = "topics"


@dataclass(frozen=True, kw_only=True)
class DPSVIMessage:
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


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A letter to be: its update is not added up yet, nor in few bits."""

    number: int
    done: int
    batches: int = 0
    last: bool = False
    page: Page
    bits: int
    least: float


def written(draft: Draft, *, n_words: int, rng: np.random.Generator) -> Message:
    """As it travels. This takes a while."""
    numbers = np.frombuffer(_NUMBERS.pack(draft.number, draft.done, draft.batches, draft.last), np.uint8)
    coded = update_codec.encode(draft.page.sum(), n_words=n_words, bits=draft.bits, rng=rng, least=draft.least)
    data = np.concatenate([numbers, coded])
    return Message(torch.from_numpy(data), _CODEC, (data.size,), torch.uint8)


def read(message: Message, *, n_words: int, n_topics: int) -> DPSVIMessage:
    """As it came; ValueError where it is no letter."""
    data = message.data.numpy()
    if message.codec != _CODEC or data.size < _NUMBERS.size:
        raise ValueError(f"a letter about topics cannot be read from {data.size} bytes of {message.codec}")
    number, done, batches, last = _NUMBERS.unpack(data[: _NUMBERS.size].tobytes())
    if min(number, done, batches) < 0:
        raise ValueError("a letter about topics has negative numbers")
    update = update_codec.decode(data[_NUMBERS.size :], n_words=n_words, n_topics=n_topics)
    return DPSVIMessage(number=number, done=done, batches=batches, last=last, update=update)


def whole(topics: Topics) -> Page:
    """A table as an update that puts it in the place of any other."""
    words, rows = np.arange(topics.n_words, dtype=np.int32), topics.settle().copy()
    update = Update(log_decay=-math.inf, words=words, statistics=rows, totals=topics.totals.copy())
    return Page(topics.n_words, topics.n_topics, [update])
