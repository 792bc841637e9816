"""What a part can carry: not every codec suits every vector that a strategy sends.

A codec, or an average, that is wrong for some kind of vector says so, and why, in ``unsuited``; whoever sends vectors
of that kind refuses it when it is made, and not in the middle of a run, or never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from flockstep import check

T = TypeVar("T")

MODELS = "models"
"""Each replaces what the receiver has, or moves it towards what was sent: nothing that is left out comes later."""
CHANGES = "changes"
"""Gradients too: what they add up to matters, and what is left out may come later."""
MEANS = "the parts of a mean"
"""Given to everybody in one exchange, without a word back."""


def codec_for(owner: object, codec: T, *kinds: str, such_as: str, instead: str) -> T:
    """A codec for such vectors; one that is none, or not for them, is refused in one sentence, with a remedy."""
    check.has(owner, "codec", codec, "encode", "decode", kind=f"a codec{such_as and f' such as {such_as}'}")
    return _suited(owner, "codec", codec, kinds, instead)


def average_for(owner: object, average: T, *kinds: str) -> T:
    """An average for such vectors; one that is none, or whose codec is not for them, is refused."""
    check.has(owner, "average", average, "start", kind="an average such as Exact()")
    return _suited(owner, "average", average, kinds, "Exact(), Coded(codec=Cast()) or Coded(codec=Stochastic(bits=8))")


def unsuited(part: object) -> Mapping[str, str]:
    """Which vectors a part cannot carry, and why; one of the user's own that does not say is taken at its word."""
    found: Mapping[str, str] = getattr(part, "unsuited", {})
    return found


def _suited(owner: object, name: str, part: T, kinds: tuple[str, ...], instead: str) -> T:
    for kind in kinds:
        if why := unsuited(part).get(kind):
            raise ValueError(f"{type(owner).__name__}.{name} must suit {kind}, got {part!r}: {why}\n  use {instead}")
    return part
