"""One wording for argument errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from flockstep import check


class LocalSGD:
    """Stands for any owner."""


def test_the_owner_is_named_by_its_class_or_by_its_name() -> None:
    for owner in (LocalSGD(), "LocalSGD"):
        with pytest.raises(ValueError, match=r"^LocalSGD.period must be at least 1, got 0$"):
            check.whole(owner, "period", 0)


def test_whole() -> None:
    assert check.whole("A", "n", 3) == 3
    assert check.whole("A", "n", 0, at_least=0) == 0
    assert check.whole("A", "n", -2, at_least=-2) == -2
    with pytest.raises(ValueError, match=r"^A.n must be at least 2, got 1$"):
        check.whole("A", "n", 1, at_least=2)


@pytest.mark.parametrize("value", [True, False, np.True_, 2.0, "2", None, Fraction(2)], ids=repr)
def test_what_is_not_a_count(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^A.n must be a whole number, got "):
        check.whole("A", "n", value)


def test_numpy_numbers_are_numbers_and_come_back_plain() -> None:
    assert type(check.whole("A", "n", np.int64(3))) is int
    assert type(check.real("A", "x", np.float32(0.5))) is float
    assert check.fraction("A", "x", np.float64(0.25)) == 0.25


def test_numbers_come_back_as_floats() -> None:
    for function, value in (
        (check.real, -2),
        (check.positive, 2),
        (check.not_negative, 0),
        (check.fraction, 1),
    ):
        assert type(function("A", "x", value)) is float
        assert function("A", "x", value) == value


@pytest.mark.parametrize(
    ("function", "value", "sentence"),
    [
        (check.real, math.nan, "A.x must be finite, got nan"),
        (check.real, -math.inf, "A.x must be finite, got -inf"),
        (check.positive, 0, "A.x must be positive, got 0"),
        (check.positive, -1.5, "A.x must be positive, got -1.5"),
        (check.positive, math.nan, "A.x must be finite, got nan"),
        (check.not_negative, -1e-9, "A.x must not be negative, got -1e-09"),
        (check.not_negative, math.inf, "A.x must be finite, got inf"),
        (check.fraction, 1.5, "A.x must be between 0 and 1, got 1.5"),
        (check.fraction, -0.1, "A.x must be between 0 and 1, got -0.1"),
        (check.fraction, math.nan, "A.x must be finite, got nan"),
    ],
)
def test_numbers_out_of_range(function: Callable[..., float], value: float, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        function("A", "x", value)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("function", [check.real, check.positive, check.not_negative, check.fraction])
@pytest.mark.parametrize("value", [True, "1", None, 1j, [1]], ids=repr)
def test_what_is_not_a_number(function: Callable[..., float], value: Any) -> None:
    with pytest.raises(TypeError, match=r"^A.x must be a number, got "):
        function("A", "x", value)


def test_one_of() -> None:
    assert check.one_of("A", "mode", "b", ("a", "b")) == "b"
    assert check.one_of("A", "mode", "b", {"a": 1, "b": 2}) == "b"
    with pytest.raises(ValueError, match=r"^A.mode must be one of 'a', 'b', got 'c'$"):
        check.one_of("A", "mode", "c", {"a": 1, "b": 2})


def test_one_of_refuses_what_cannot_be_a_key_in_the_same_words() -> None:
    with pytest.raises(ValueError, match=r"^A.mode must be one of 'a', got \['a'\]$"):
        check.one_of("A", "mode", ["a"], {"a": 1})  # type: ignore[dict-item,list-item]


def test_has() -> None:
    class Clip:
        def __call__(self) -> None: ...

    clip = Clip()
    assert check.has(LocalSGD(), "clip", clip, "__call__", kind="a clip") is clip
    with pytest.raises(TypeError, match=r"^LocalSGD.clip must be a clip, got 3$"):
        check.has(LocalSGD(), "clip", 3, "__call__", kind="a clip")
    with pytest.raises(TypeError) as caught:
        check.has(LocalSGD(), "clip", Clip, "__call__", kind="a clip")
    assert str(caught.value).endswith("\n  write Clip(...), with parentheses")


def test_has_needs_methods_not_mere_attributes() -> None:
    class Codec:
        encode = 3

    with pytest.raises(TypeError, match=r"^A.codec must be a codec"):
        check.has("A", "codec", Codec(), "encode", kind="a codec")


def test_ranks() -> None:
    check.ranks("A", "stragglers", {0: 2.0, 3: 4.0})
    check.ranks("A", "stragglers", {0: 2.0, 3: 4.0}, size=4)
    check.ranks("A", "stragglers", {}, size=1)
    with pytest.raises(ValueError, match=r"^A.stragglers names node 4, but there are nodes 0 to 3$"):
        check.ranks("A", "stragglers", {4: 1.0}, size=4)
    with pytest.raises(ValueError, match=r"^A.stragglers key must be at least 0, got -1$"):
        check.ranks("A", "stragglers", {-1: 1.0})
    with pytest.raises(TypeError, match=r"^A.stragglers key must be a whole number, got True$"):
        check.ranks("A", "stragglers", {True: 1.0})
    with pytest.raises(TypeError, match=r"^A.stragglers must map node numbers to values, got \[3\]$"):
        check.ranks("A", "stragglers", [3])  # type: ignore[arg-type]
