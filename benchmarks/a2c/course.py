"""What both sides are asked to do, and how an outcome is told."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = 100
"""Episodes that a mean return is taken over: training's own, with actions drawn at random."""


@dataclass(frozen=True)
class Course:
    """An environment, the mean return that counts as solved, and the steps over which the learning rate falls to 0."""

    env: str
    threshold: float
    timesteps: int


CARTPOLE = Course("CartPole-v1", 475, 1_000_000)
ACROBOT = Course("Acrobot-v1", -100, 1_000_000)


@dataclass(frozen=True)
class Outcome:
    """One training, up to the threshold or to the limit of time or steps."""

    solved: bool
    seconds: float
    timesteps: int
    mean_return: float

    @property
    def steps_per_second(self) -> float:
        """Environment steps."""
        return self.timesteps / self.seconds
