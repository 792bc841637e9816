"""What an engine is: something that trains a policy in place and tells how it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Tally:
    """What happened since the last one."""

    timesteps: int
    """Environment steps since the beginning of training, those before this call included."""
    returns: Sequence[float]
    """Of the episodes that ended since."""
    lengths: Sequence[int]
    policy_loss: float
    value_loss: float
    entropy: float
    """Means over the updates since."""
    learning_rate: float


Tell = Callable[[Tally], bool]
"""Called now and then while training; False ends it."""


class Engine(Protocol):
    """Trains a torch module that was given to it; ``close`` ends its threads or processes."""

    def train(self, *, since: int, until: int, tell: Tell) -> int:
        """Go on from ``since`` environment steps to at least ``until``; gives the steps reached.

        The learning rate is ``settings.rate(steps, until)``. Afterwards, and whenever ``tell`` is called, the
        module holds the parameters as they are. Ctrl-C leaves them as they were at the last update.
        """

    def predict(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """Actions for (count, *shape) observations, as a policy draws them: from 0 and unbounded."""

    def state(self) -> Mapping[str, Tensor]:
        """What training needs besides the parameters to go on, such as the optimizer's statistics."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The opposite of ``state``."""

    def close(self) -> None:
        """Leave nothing behind. Twice does no harm."""
