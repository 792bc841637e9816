"""The one place where "100 Mbit/s" and "20 ms" become numbers in SI base units."""

from __future__ import annotations

import functools
import math
import numbers
import re

_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9.]+)\s*")


def seconds(value: str | float, what: str = "time") -> float:
    """``"20 ms"`` or a plain number of seconds."""
    if isinstance(value, str):
        number = _seconds_of_text(value, what)
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"{what} must be a time such as '20 ms' or a number of seconds, got {value!r}")
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{what} must be finite and not negative, got {value!r}")
    return number


def bytes_per_second(value: str, what: str = "bandwidth") -> float:
    """``"100 Mbit/s"`` or ``"12 MB/s"``. A bare number is refused: bits and bytes are too easily confused."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string with its unit, such as '100 Mbit/s', got {value!r}")
    return _rate_of_text(value, what)


# Simulators ask at every message, and of few texts.
@functools.lru_cache(maxsize=1024)
def _seconds_of_text(value: str, what: str) -> float:
    amount, unit = _split(value, what, "a time such as '20 ms', '1.5 s' or '2 min'")
    # Some keyboards write the Greek letter, some the micro sign: to the eye they are one.
    unit = unit.replace("\N{GREEK SMALL LETTER MU}", "\N{MICRO SIGN}")
    if unit not in _TIME:
        raise ValueError(f"{what}: unknown unit {unit!r} in {value!r}; known are {', '.join(_TIME)}")
    return amount * _TIME[unit]


@functools.lru_cache(maxsize=1024)
def _rate_of_text(value: str, what: str) -> float:
    amount, unit = _split(value, what, "a rate such as '100 Mbit/s' or '12 MB/s'")
    match = re.fullmatch(r"([kMGT]?|[KMG]i)(bit|B)/s", unit)
    if match is None:
        raise ValueError(f"{what}: unknown unit {unit!r} in {value!r}; write 'Mbit/s', 'Gbit/s', 'MB/s' ...")
    number = amount * _PREFIX[match[1]] / (8.0 if match[2] == "bit" else 1.0)
    if not 0 < number < math.inf:
        raise ValueError(f"{what} must be positive and finite, got {value!r}")
    return number


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{what} must be {example}, got {text!r}")
    return float(match[1]), match[2]


def show_bytes(count: float) -> str:
    """``1.3 MB``, for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def show_seconds(time: float) -> str:
    """``20 ms``, ``3.2 s`` or ``2 min 05 s``, for people."""
    if time < 999.5e-6:
        return f"{time * 1e6:.3g} µs"
    if time < 0.9995:
        return f"{time * 1e3:.3g} ms"
    if time < 99.95:
        return f"{time:.3g} s"
    minutes, rest = divmod(round(time), 60)
    return f"{minutes} min {rest:02d} s"
