"""Instructions that numba has no word for do what Python's integers say."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

import numba

from flockstep.lda.core.instructions import fetch, how_many, lowest_bit, shifted

BITS = [1, 2, 3, 0x80000000, 0xFFFFFFFF, 0x8000000000000000, 0xF0F0F0F0F0F0F0F0, 2**64 - 1]


@numba.njit
def _about(bits):
    return lowest_bit(bits), how_many(bits)  # type: ignore[call-arg]


@numba.njit
def _shift(bits, by):
    return shifted(bits, by)  # type: ignore[call-arg]


@numba.njit
def _sum_in_order(table, order):
    total = np.float32(0)
    for i in range(order.size):
        if i + 1 < order.size:
            fetch(table, order[i + 1])
        total += table[order[i]].sum()
    return total


@pytest.mark.parametrize("bits", BITS)
def test_about_bits(bits):
    lowest, many = _about(np.uint64(bits))
    assert (lowest, many) == ((bits & -bits).bit_length() - 1, bits.bit_count())


@pytest.mark.parametrize("by", [0, 1, 15, 20, 31])
@pytest.mark.parametrize("bits", [0, 1, 0x7F7FFFFF, 0xFFFFFFFF])
def test_shifts_are_of_32_bits(bits, by):
    assert _shift(np.uint32(bits), np.uint32(by)) == bits >> by


@pytest.mark.parametrize("topics", [1, 2, 16, 17, 100])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_rows_that_were_asked_for_are_what_they_were(rows, topics):
    table = np.arange(rows * topics, dtype=np.float32).reshape(rows, topics)
    before = table.copy()
    assert _sum_in_order(table, np.arange(rows)[::-1].copy()) == before.sum()
    assert (table == before).all()
