"""The rows of an update as bytes and back, compiled: which topics of a word have a number, and the numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.lda.core.expectations import compiled, in_place
from flockstep.lda.core.instructions import AHEAD, fetch, how_many, lowest_bit, shifted

INFINITE = 0x7F800000
"""The bits of a float that is no number any more."""


@cache
def some_coins() -> NDArray[np.uint32]:
    """Numbers of 24 bits, as even as can be, in no order: to look one up takes less time than to make one.

    Twice over, so that a row of any length may begin at any of the first half.
    """
    rng = np.random.default_rng(0)
    coins = rng.permutation(2**16) * 2**8 + rng.integers(2**8, size=2**16)
    return np.concatenate([coins, coins]).astype(np.uint32)


@in_place
def _way(count: Any, topics: Any, width: Any) -> Any:
    """How to tell which topics: 0 not at all, 1 by bits, 2 by a list."""
    listed = count if topics <= 256 else 2 * count
    whole, bits = (topics - count) * width, (topics + 7) // 8
    if whole <= bits and whole <= listed:
        return 0
    return 1 if bits <= listed else 2


@in_place
def _put(out: Any, at: Any, number: Any) -> Any:
    """Seven bits a byte, the last one below 128; where the next byte goes."""
    while number > 127:
        out[at] = (number & 127) | 128
        number >>= 7
        at += 1
    out[at] = number
    return at + 1


@in_place
def _round(
    row: Any, values: Any, shift: Any, base: Any, floor: Any, lowest: Any, coins: Any, codes: Any, marks: Any
) -> None:
    """The code of every number of a row, by a coin of its own, and which are not 0. No branches: vectors of eight."""
    mask = np.uint32((np.uint32(1) << shift) - np.uint32(1))
    least = np.uint32(shifted(floor, shift) - base)  # type: ignore[call-arg]
    for k in range(row.size):
        coin, value = coins[k], values[k]
        large = np.uint32(shifted(np.uint32(row[k] + (coin & mask)), shift) - base)
        small = least if np.float32(np.int32(coin)) * lowest < value * np.float32(2**24) else np.uint32(0)
        code = small if value < lowest else large
        codes[k], marks[k] = code, code != np.uint32(0)


@in_place
def _flag(eights: Any, many: Any) -> Any:
    """A bit for each byte that is 1: eight of these to a byte by one product. How many there are."""
    count = np.int64(0)
    for first in range(many.size):
        flags = np.uint64(0)
        for group in range(8):
            byte = (eights[8 * first + group] * np.uint64(0x0102040810204080)) >> np.uint64(56)
            flags |= byte << np.uint64(8 * group)
        many[first] = flags
        count += np.int64(how_many(flags))  # type: ignore[call-arg]
    return count


@in_place
def _put_row(codes: Any, many: Any, flags: Any, way: Any, width: Any, out: Any, at: Any) -> Any:
    """Say which topics have a number, and the numbers; where the next byte goes."""
    topics = codes.size
    if way == 0:
        for k in range(topics):
            at = _put_number(codes[k], width, out, at)
        return at
    if way == 1:
        for group in range((topics + 7) // 8):
            out[at + group] = flags[group]
        at += (topics + 7) // 8
    if way == 2:
        for first in range(many.size):
            left = many[first]
            while left:
                topic = 64 * first + np.int64(lowest_bit(left))  # type: ignore[call-arg]
                at = _put_number(np.uint32(topic), 1 if topics <= 256 else 2, out, at)
                left &= left - np.uint64(1)
    for first in range(many.size):
        left = many[first]
        while left:
            code = codes[64 * first + np.int64(lowest_bit(left))]  # type: ignore[call-arg]
            at = _put_number(code, width, out, at)
            left &= left - np.uint64(1)
    return at


@in_place
def _put_number(number: Any, width: Any, out: Any, at: Any) -> Any:
    """So many bytes, the lowest first; where the next byte goes."""
    out[at] = number & np.uint32(255)
    for byte in range(1, width):
        out[at + byte] = (number >> np.uint32(8 * byte)) & np.uint32(255)
    return at + width


@compiled
def write_rows(
    order: Any, words: Any, table: Any, shift: Any, base: Any, width: Any, floor: Any, seed: Any, coins: Any, out: Any
) -> Any:
    """Rows in this order into ``out``; how many bytes, and how many rows had anything in them.

    Each row has its coins from another place of the table, which ``seed`` decides.
    """
    topics = table.shape[1]
    codes, marks = np.empty(topics, np.uint32), np.zeros((topics + 63) // 64 * 64, np.uint8)
    many = np.zeros(marks.size // 64, np.uint64)
    # The same bytes.
    eights, flags = marks.view(np.uint64), many.view(np.uint8)
    lowest = np.array([floor], np.uint32).view(np.float32)[0]
    values = table.view(np.float32)
    at, rows, last = 0, 0, -1
    for i in range(order.size):
        u = order[i]
        if i + AHEAD < order.size:
            fetch(table, order[i + AHEAD])
        stir = np.uint32(seed) + np.uint32(u) * np.uint32(0x9E3779B1)
        stir = np.uint32((stir ^ (stir >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        start = np.int64((stir ^ (stir >> np.uint32(13))) % np.uint32(coins.size // 2))
        _round(
            table[u],
            values[u],
            np.uint32(shift),
            np.uint32(base),
            np.uint32(floor),
            lowest,
            coins[start : start + topics],
            codes,
            marks,
        )
        count = _flag(eights, many)
        if count == 0:
            continue
        at = _put(out, at, words[u] - last - 1)
        at = _put(out, at, count)
        last, rows = words[u], rows + 1
        at = _put_row(codes, many, flags, _way(count, topics, width), width, out, at)
    return at, rows


@in_place
def _get(data: Any, at: Any) -> Any:
    """A number of ``_put`` and where the next byte is; -1 where there is none."""
    number, shift = np.int64(0), 0
    while at < data.size and shift < 35:
        number |= np.int64(data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return number, at
        shift += 7
    return np.int64(-1), at


@in_place
def _which(data: Any, at: Any, count: Any, topics: Any, way: Any, chosen: Any) -> Any:
    """Read which topics a row has; False where they are not so many, or not in order."""
    if way == 0:
        for k in range(topics):
            chosen[k] = k
        return True
    if way == 1:
        found, flags = 0, (topics + 7) // 8
        for first in range(0, flags, 8):
            left = np.uint64(0)
            for byte in range(min(8, flags - first)):
                left |= np.uint64(data[at + first + byte]) << np.uint64(8 * byte)
            while left and found <= count:
                chosen[found] = 8 * first + np.int64(lowest_bit(left))  # type: ignore[call-arg]
                left &= left - np.uint64(1)
                found += 1
        return found == count and chosen[count - 1] < topics
    step = 1 if topics <= 256 else 2
    for j in range(count):
        topic = np.int64(data[at + j * step])
        if step == 2:
            topic |= np.int64(data[at + j * step + 1]) << 8
        if topic >= topics or (j > 0 and topic <= chosen[j - 1]):
            return False
        chosen[j] = topic
    return True


@compiled
def read_rows(data: Any, shift: Any, base: Any, width: Any, words: Any, found: Any, table: Any) -> Any:
    """Fill rows; 0, or what is wrong."""
    at, last, topics = 0, np.int64(-1), table.shape[1]
    chosen = np.empty(topics + 1, np.int64)
    for u in range(found.size):
        step, at = _get(data, at)
        count, at = _get(data, at)
        if step < 0 or count < 0:
            return 1
        last += step + 1
        if last >= words:
            return 2
        if count < 1 or count > topics:
            return 3
        found[u] = last
        way = _way(count, topics, width)
        numbers = topics if way == 0 else count
        names = 0 if way == 0 else ((topics + 7) // 8 if way == 1 else (count if topics <= 256 else 2 * count))
        if at + names + numbers * width > data.size:
            return 1
        if not _which(data, at, count, topics, way, chosen):
            return 4
        at += names
        largest, zeros = np.int64(0), 0
        for j in range(numbers):
            code = np.int64(data[at])
            for byte in range(1, width):
                code |= np.int64(data[at + byte]) << (8 * byte)
            at += width
            bits = (code + base) << shift if code else np.int64(0)
            largest, zeros = max(largest, bits), zeros + (code == 0)
            table[u, chosen[j]] = bits
        if largest >= INFINITE or zeros != numbers - count:
            return 4
    return 0 if at == data.size else 1
