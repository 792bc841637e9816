"""Symmetric noises, most of them with heavy tails: what clipping and normalised steps are made for.

Each is of standard scale. A step at a time or many at once, the same stream gives the same numbers: whoever needs
speed draws blocks. That is why every number comes from a fixed count of uniforms of its own step, and why
transcendental functions see contiguous arrays only: NumPy may round differently where memory has gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flockstep import check

Numbers = NDArray[np.float64]

_CELLS = 2**14
_FINEST = 2.0**-54
"""Half of the smallest uniform above zero: stands in for zero where zero would be infinitely far out."""


class Noise(Protocol):
    """Independent numbers around zero."""

    def draw(self, rng: np.random.Generator, steps: int, dim: int) -> Numbers:
        """New numbers (steps, dim); ``steps`` draws of one step give the same."""


@dataclass(frozen=True)
class Gaussian:
    """The standard normal distribution: every moment is finite."""

    def draw(self, rng: np.random.Generator, steps: int, dim: int) -> Numbers:
        """``rng.standard_normal``."""
        return rng.standard_normal((steps, dim))


@dataclass(frozen=True, kw_only=True)
class StudentT:
    """Student's t: E|u|^p is finite for p < df. Up to df 2 the variance is infinite, up to df 1 there is no mean."""

    df: float = 1.5

    def __post_init__(self) -> None:
        check.positive(self, "df", self.df)

    def draw(self, rng: np.random.Generator, steps: int, dim: int) -> Numbers:
        """``rng.standard_t``."""
        return rng.standard_t(self.df, (steps, dim))


@dataclass(frozen=True, kw_only=True)
class AlphaStable:
    """The symmetric stable distribution with characteristic function exp(-|t|^alpha), alpha in (0, 2].

    E|u|^p is finite for p < alpha only: infinite variance below alpha 2, and no mean from alpha 1 down. alpha 1 is
    Cauchy's distribution; alpha 2 is a Gaussian of variance 2, with every moment. Below alpha 0.1 the largest numbers
    do not fit a float64 and come as infinity.

        u = sin(alpha A) / cos(A)^(1/alpha) * (cos((1 - alpha) A) / W)^((1 - alpha)/alpha)

    A is uniform between -pi/2 and pi/2, W is exponential (Chambers, Mallows, Stuck 1976).
    """

    alpha: float = 1.3

    def __post_init__(self) -> None:
        if check.positive(self, "alpha", self.alpha) > 2:
            raise ValueError(f"AlphaStable.alpha must be at most 2, got {self.alpha}")

    def draw(self, rng: np.random.Generator, steps: int, dim: int) -> Numbers:
        """Two uniforms to a number."""
        angle, wait = _uniforms(rng, steps, 2, dim)
        angle -= 0.5
        angle *= np.pi
        np.log1p(np.negative(wait, out=wait), out=wait)
        wait -= _FINEST
        # Powers as exponentials of logarithms, which NumPy computes many at a time.
        power = np.log(np.cos((1 - self.alpha) * angle) / np.negative(wait, out=wait))
        power *= (1 - self.alpha) / self.alpha
        power -= np.log(np.cos(angle)) / self.alpha
        with np.errstate(over="ignore"):
            u: Numbers = np.exp(power, out=power)
            u *= np.sin(self.alpha * angle)
        return u


@dataclass(frozen=True)
class LogTail:
    """Density proportional to 1 / ((u^2 + 2) ln^2(u^2 + 2)): E|u| is finite, E|u|^p for no p > 1.

    About the heaviest tail that still has a mean. Drawn through the inverse of its distribution function, from a
    table whose numbers are within a millionth of the true ones.
    """

    def draw(self, rng: np.random.Generator, steps: int, dim: int) -> Numbers:
        """One uniform to a number."""
        starts, slopes, per_cell = _log_tail_table()
        uniform = rng.random((steps, dim))
        beyond = np.minimum(uniform, 1 - uniform)
        np.maximum(beyond, _FINEST, out=beyond)
        beyond *= 2
        place = np.log(beyond, out=beyond)
        place *= -1 / per_cell
        cell = place.astype(np.int32)
        place -= cell
        place *= slopes.take(cell)
        place += starts.take(cell)
        uniform -= 0.5
        u: Numbers = np.sinh(np.copysign(place, uniform, out=place), out=place)
        u *= np.sqrt(2)
        return u


@dataclass(frozen=True, kw_only=True)
class CauchyMixture:
    """Standard normal, but standard Cauchy with probability ``share``: E|u|^p is finite for p < 1 only, so no mean.

    At share 0 it is Gaussian, and every moment is finite.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        check.fraction(self, "share", self.share)

    def draw(self, rng: np.random.Generator, steps: int, dim: int) -> Numbers:
        """Three uniforms to a number: which of the two it is, and the radius and angle of Box and Muller."""
        which, radius, angle = _uniforms(rng, steps, 3, dim)
        angle *= 2 * np.pi
        u: Numbers = np.sqrt(-2 * np.log1p(-radius))
        u *= np.cos(angle)
        far = which < self.share
        u[far] = np.tan(angle[far])
        return u


def _uniforms(rng: np.random.Generator, steps: int, each: int, dim: int) -> Numbers:
    """Uniforms from [0, 1) as (each, steps, dim), contiguous; those of one step follow each other in the stream."""
    return np.ascontiguousarray(rng.random((steps, each, dim)).swapaxes(0, 1))


@lru_cache(maxsize=1)
def _log_tail_table() -> tuple[Numbers, Numbers, float]:
    """asinh(|u|/sqrt 2) as straight pieces in t = -ln P(further out than |u|): starts, slopes, and a piece's width.

    With u = sqrt(2) sinh(s) the density of s is proportional to 1 / (cosh s (ln 2 + 2 ln cosh s)^2). Both ends are
    smooth in t: s grows as t near zero, and as t - 2 ln t far out.
    """
    edges = np.linspace(0, 90, 2**18 + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    density = 1 / (np.cosh(middle) * (np.log(2) + 2 * np.log(np.cosh(middle))) ** 2)
    # From the far end, so that small terms are not lost beside large ones.
    beyond = np.cumsum(density[::-1])[::-1]
    t = np.log(beyond[0]) - np.log(beyond)
    # What is further out than any uniform can say needs one cell more, for the last to end in.
    width = -np.log(2 * _FINEST) * (1 + 1e-9) / _CELLS
    s = np.interp(width * np.arange(_CELLS + 2), t, edges[:-1])
    return s[:-1], np.diff(s), float(width)
