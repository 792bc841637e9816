"""Learning rates by the steps of the whole training, however many calls of ``learn``, files and legs it is made of.

A number falls to 0 over the steps of one call; a function of what remains knows only that call, too, and is in no file.
These know where the training stands, and are kept with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flockstep import check

Schedule = Callable[[float], float]
"""The learning rate as a function of what remains of the steps of one call: 1 at its start, 0 at its end."""


@dataclass(frozen=True)
class Constant:
    """The same learning rate from the first step of a training to the last.

    Args:
        rate: The rate, above 0.

    Example:
        model = HSA2C("MlpPolicy", "CartPole-v1", learning_rate=Constant(7e-4))
    """

    rate: float

    def __post_init__(self) -> None:
        check.positive(self, "rate", self.rate)

    def at(self, steps: float) -> float:
        """The rate after so many steps."""
        return self.rate


@dataclass(frozen=True)
class Linear:
    """A learning rate that goes from one value to another in a straight line, and stays there.

        rate = first + (last - first) * min(1, done / steps)              after ``done`` steps of the whole training

    Args:
        first: The rate at the first step, above 0.
        last: The rate after ``steps`` steps and from then on, 0 or more.
        steps: Environment steps of all threads, over all calls of ``learn``.

    Example:
        model = HSA2C("MlpPolicy", "CartPole-v1", learning_rate=Linear(7e-4, 1e-4, steps=1_000_000))
    """

    first: float
    last: float
    steps: int

    def __post_init__(self) -> None:
        check.positive(self, "first", self.first)
        check.not_negative(self, "last", self.last)
        check.whole(self, "steps", self.steps)

    def at(self, steps: float) -> float:
        """The rate after so many steps."""
        return self.first + (self.last - self.first) * min(1.0, steps / self.steps)


Rate = float | Schedule | Constant | Linear
KINDS: dict[str, type[Constant | Linear]] = {kind.__name__: kind for kind in (Constant, Linear)}


def rate_at(rate: Rate, steps: float, until: float) -> float:
    """The learning rate after so many steps of a training that is to go to ``until``."""
    if isinstance(rate, (Constant, Linear)):
        return rate.at(steps)
    remaining = 1 - steps / until
    return (
        check.not_negative("HSA2C", "learning_rate(remaining)", rate(remaining)) if callable(rate) else rate * remaining
    )


def to_json(rate: Rate) -> float | dict[str, Any] | None:
    """For a file; None stands for a function, which no file can hold."""
    if isinstance(rate, (Constant, Linear)):
        return {"kind": type(rate).__name__, **asdict(rate)}
    return None if callable(rate) else rate


def from_json(parsed: float | Mapping[str, Any]) -> float | Constant | Linear:
    """The opposite."""
    if isinstance(parsed, Mapping):
        numbers = {name: value for name, value in parsed.items() if name != "kind"}
        return KINDS[parsed["kind"]](**numbers)
    return parsed
