"""One wording for argument errors: ``LocalSGD.period must be at least 1, got 0``.

Every check takes the owner (an object or a name) and the argument's name first, so that a message can say
whose argument it was, and gives the value back so that a check can stand in an expression.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def _name(owner: object, name: str) -> str:
    return f"{owner if isinstance(owner, str) else type(owner).__name__}.{name}"


def whole(owner: object, name: str, value: Any, *, at_least: int = 1) -> int:
    """A whole number, counts above all; True and 2.0 are not counts, numpy's integers are."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{_name(owner, name)} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{_name(owner, name)} must be at least {at_least}, got {value}")
    return int(value)


def real(owner: object, name: str, value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{_name(owner, name)} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{_name(owner, name)} must be finite, got {value}")
    return float(value)


def positive(owner: object, name: str, value: Any) -> float:
    """A finite number above zero."""
    if real(owner, name, value) <= 0:
        raise ValueError(f"{_name(owner, name)} must be positive, got {value}")
    return float(value)


def not_negative(owner: object, name: str, value: Any) -> float:
    """A finite number, zero or above."""
    if real(owner, name, value) < 0:
        raise ValueError(f"{_name(owner, name)} must not be negative, got {value}")
    return float(value)


def fraction(owner: object, name: str, value: Any) -> float:
    """A number from 0 to 1."""
    if not 0 <= real(owner, name, value) <= 1:
        raise ValueError(f"{_name(owner, name)} must be between 0 and 1, got {value}")
    return float(value)


def one_of(owner: object, name: str, value: T, choices: Mapping[T, Any] | tuple[T, ...]) -> T:
    """One of a few named choices."""
    if value not in tuple(choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{_name(owner, name)} must be one of {listed}, got {value!r}")
    return value


def has(owner: object, name: str, value: T, *methods: str, kind: str) -> T:
    """Something that can do what is needed of it: ``LocalSGD.clip must be a Clip``."""
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    if missing or isinstance(value, type):
        fix = f"\n  write {value.__name__}(...), with parentheses" if isinstance(value, type) else ""
        raise TypeError(f"{_name(owner, name)} must be {kind}, got {value!r}{fix}")
    return value


def ranks(owner: object, name: str, value: Mapping[int, Any], size: int | None = None) -> None:
    """A mapping whose keys are node numbers."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{_name(owner, name)} must map node numbers to values, got {value!r}")
    for rank in value:
        whole(owner, f"{name} key", rank, at_least=0)
        if size is not None and rank >= size:
            raise ValueError(f"{_name(owner, name)} names node {rank}, but there are nodes 0 to {size - 1}")


def peer(value: Any, rank: int, size: int) -> int:
    """The number of another node."""
    whole("Node", "peer", value, at_least=0)
    if value >= size or value == rank:
        raise ValueError(f"node {rank} can talk to nodes 0 to {size - 1} other than itself, got {value}")
    return int(value)
