"""An update of the topics as few bytes: words as steps from one to the next, and of each word the topics that matter.

    head      what it is, bits per number, topics, words of the vocabulary, rows, log a, where numbers begin
    totals    sums over words, exact
    a row     word (step from the last) | how many topics | which ones | their numbers

Which topics is told by a list, by a bit for each, or not at all where next to all have a number: the shortest of these,
which the count alone decides. A number is the top bits of a float without its sign: 32 bits are exact, 16 keep 8 of
the fraction and 8 keep 3 of it and powers of two down to 2^-31 of the largest. What is cut off decides by a coin
whether the last bit goes up, so that numbers are right on average; one below ``least`` becomes nothing or ``least`` in
the same way. No number becomes negative.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flockstep.lda.core.topics import Update
from flockstep.lda.nodes.update_rows import INFINITE, read_rows, some_coins, write_rows

Bytes = NDArray[np.uint8]

WIDTHS = (8, 16, 32)
"""Bits per number."""
_HEAD = struct.Struct("<4sBxxxIIIId")
_MARK = b"lda1"
_SHIFTS = {8: 20, 16: 15, 32: 0}
_WRONG = "these bytes are no update of topics: {}"
_REASONS = ("", "they end too soon", "a word is beyond the vocabulary", "a row has too many topics", "a topic is wrong")


@dataclass(frozen=True)
class _Format:
    """How numbers are written."""

    shift: int
    base: int
    width: int
    """Bytes."""

    @classmethod
    def of(cls, bits: int, base: int) -> _Format:
        return cls(_SHIFTS[bits], base, bits // 8)


def encode(update: Update, *, n_words: int, bits: int, rng: np.random.Generator, least: float = 0.0) -> Bytes:
    """An update in so many bits per number; ``least`` is for 8 and 16, where it keeps next to nothing off the wire."""
    # NumPy sorts numbers of 16 bits by radix, several times as fast.
    order = np.argsort(update.words.astype(np.uint16) if n_words <= 2**16 else update.words, kind="stable")
    table = np.ascontiguousarray(update.statistics, np.float32)
    topics = update.totals.size
    bottom = _bottom(table, bits)
    form = _Format.of(bits, bottom)
    floor = 0 if bits == 32 else _floor(least, form)
    out = np.empty(order.size * (topics * form.width + 10), np.uint8)
    length, rows = write_rows(
        order,
        update.words,
        table.view(np.uint32).reshape(table.shape),
        form.shift,
        form.base,
        form.width,
        floor,
        int(rng.integers(2**32)),
        some_coins(),
        out,
    )
    head = _HEAD.pack(_MARK, bits, topics, n_words, rows, form.base, update.log_decay)
    totals = np.ascontiguousarray(update.totals, "<f8")
    return np.concatenate([np.frombuffer(head, np.uint8), totals.view(np.uint8), out[:length]])


def decode(data: Bytes, *, n_words: int, n_topics: int) -> Update:
    """The update; ValueError where it is not one for so many words and topics."""
    if data.size < _HEAD.size + 8 * n_topics:
        raise ValueError(_WRONG.format(_REASONS[1]))
    mark, bits, topics, words, rows, base, log_decay = _HEAD.unpack(data[: _HEAD.size].tobytes())
    if mark != _MARK or bits not in WIDTHS or (base and bits != 8) or base > INFINITE >> 20:
        raise ValueError(_WRONG.format("their head makes no sense"))
    if (topics, words) != (n_topics, n_words):
        raise ValueError(_WRONG.format(f"{words} words and {topics} topics, not {n_words} and {n_topics}"))
    totals = data[_HEAD.size : _HEAD.size + 8 * topics].copy().view("<f8").astype(np.float64)
    if math.isnan(log_decay) or log_decay > 0 or not (np.isfinite(totals).all() and (totals >= 0).all()):
        raise ValueError(_WRONG.format("their decay or their totals make no sense"))
    body = np.ascontiguousarray(data[_HEAD.size + 8 * topics :])
    # A row has three bytes at least: nobody can ask for much memory with few.
    if rows > min(words, body.size // 3):
        raise ValueError(_WRONG.format(_REASONS[1]))
    form, found = _Format.of(bits, base), np.empty(rows, np.int32)
    table = np.zeros((rows, topics), np.float32)
    wrong = read_rows(body, form.shift, form.base, form.width, words, found, table.view(np.uint32))
    if wrong:
        raise ValueError(_WRONG.format(_REASONS[wrong]))
    return Update(log_decay=log_decay, words=found, statistics=table, totals=totals)


def _bottom(table: NDArray[np.float32], bits: int) -> int:
    """What is taken from all codes, so that the largest still fits."""
    if bits != 8 or not table.size:
        return 0
    top = int(np.array([table.max()], np.float32).view(np.uint32)[0])
    return max(0, -(-top // 2**20) - 255)


def _floor(least: float, form: _Format) -> int:
    """The bits of the smallest number that is written."""
    # abs: a zero with a sign has a bit set.
    asked = int(np.array([abs(least)], np.float32).view(np.uint32)[0])
    return max(form.base + 1, -(-asked >> form.shift)) << form.shift
