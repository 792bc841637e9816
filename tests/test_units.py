"""Times and rates with their units, and back into words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flockstep.units import bytes_per_second, seconds, show_bytes, show_seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20 ms", 0.02),
        ("20ms", 0.02),
        (" 1.5  s ", 1.5),
        (".5 s", 0.5),
        ("2 min", 120),
        ("3 h", 10800),
        ("7 us", 7e-6),
        ("7 \N{MICRO SIGN}s", 7e-6),
        ("7 \N{GREEK SMALL LETTER MU}s", 7e-6),
        ("40 ns", 4e-8),
        ("1e3 ms", 1),
        ("2.5E-1 s", 0.25),
        ("0 s", 0),
        (3, 3),
        (0.25, 0.25),
        (0, 0),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2),
    ],
)
def test_seconds(text: Any, value: float) -> None:
    assert seconds(text) == pytest.approx(value)
    assert type(seconds(text)) is float


@pytest.mark.parametrize("text", ["", "ms", "20", "100", "1e5", "-5 ms", "5 ms 3", "five ms", "1.2.3 s", "5. . s"])
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        seconds(text, "Network.latency")
    example = "a time such as '20 ms', '1.5 s' or '2 min'"
    assert str(caught.value) == f"Network.latency must be {example}, got {text!r}"


def test_unknown_units_of_time_are_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^time: unknown unit 'days' in '2 days'; known are ns, us, .*, min, h$"):
        seconds("2 days")


@pytest.mark.parametrize("value", [-1, -0.5, math.nan, math.inf, "1e999 s"])
def test_times_are_finite_and_not_negative(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^time must be finite and not negative, got "):
        seconds(value)


@pytest.mark.parametrize("value", [True, None, [1], b"1 s"], ids=repr)
def test_other_things_are_not_times(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^time must be a time such as '20 ms' or a number of seconds, got "):
        seconds(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100 Mbit/s", 12.5e6),
        ("100Mbit/s", 12.5e6),
        ("8 bit/s", 1),
        ("12 MB/s", 12e6),
        ("3 B/s", 3),
        ("1 kB/s", 1e3),
        ("2.5 Gbit/s", 312.5e6),
        ("1 TB/s", 1e12),
        ("1 KiB/s", 1024),
        ("1 GiB/s", 2**30),
        ("8 Mibit/s", 2**20),
        ("1e-3 GB/s", 1e6),
    ],
)
def test_bytes_per_second(text: str, value: float) -> None:
    assert bytes_per_second(text) == pytest.approx(value)


@pytest.mark.parametrize("value", [100, 1e6, None, True], ids=repr)
def test_a_bare_number_is_no_rate(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^bandwidth must be a string with its unit, such as '100 Mbit/s', got "):
        bytes_per_second(value)


@pytest.mark.parametrize("unit", ["Mb/s", "mbit/s", "Mbps", "MB", "bits/s", "kiB/s", "KB/s", "Mbit/h"])
def test_units_that_could_mean_two_things_are_refused(unit: str) -> None:
    with pytest.raises(ValueError, match=rf"^Network.bandwidth: unknown unit '{unit}' in '10 {unit}'; write 'Mbit/s'"):
        bytes_per_second(f"10 {unit}", "Network.bandwidth")


@pytest.mark.parametrize("text", ["0 Mbit/s", "1e999 MB/s", "1e-400 B/s"])
def test_rates_are_positive_and_finite(text: str) -> None:
    with pytest.raises(ValueError, match=r"^bandwidth must be positive and finite, got "):
        bytes_per_second(text)


@pytest.mark.parametrize("text", ["100", "Mbit/s", "-3 MB/s", ""])
def test_what_is_not_a_rate(text: str) -> None:
    with pytest.raises(ValueError, match=r"^bandwidth must be a rate such as '100 Mbit/s' or '12 MB/s', got "):
        bytes_per_second(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1340, "1.34 kB"),
        (999_499, "999 kB"),
        (999_999, "1 MB"),
        (1_300_000, "1.3 MB"),
        (2.5e9, "2.5 GB"),
        (7e12, "7 TB"),
    ],
)
def test_show_bytes(count: float, text: str) -> None:
    assert show_bytes(count) == text


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (7e-6, "7 µs"),
        (0.000_999_9, "1 ms"),
        (0.02, "20 ms"),
        (0.9999, "1 s"),
        (3.2, "3.2 s"),
        (99.4, "99.4 s"),
        (99.97, "1 min 40 s"),
        (119.8, "2 min 00 s"),
        (125, "2 min 05 s"),
        (3600, "60 min 00 s"),
    ],
)
def test_show_seconds(time: float, text: str) -> None:
    assert show_seconds(time) == text


@settings(deadline=None)
@given(st.floats(1e-6, 1e14))
@pytest.mark.slow
def test_people_are_not_shown_exponents(value: float) -> None:
    assert "e" not in show_bytes(value) or value < 1
    assert "e" not in show_seconds(value)


@settings(deadline=None)
@given(st.floats(0, 1e6), st.sampled_from(["ns", "us", "ms", "s", "min", "h"]))
def test_every_written_time_is_read(amount: float, unit: str) -> None:
    assert seconds(f"{amount!r} {unit}") == pytest.approx(amount * seconds(f"1 {unit}"))
