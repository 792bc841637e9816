"""The course of a training: a row now and then, for curves and for whoever watches."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from flockstep.rl.engine import Tally

WINDOW = 100
"""Episodes that a mean return is taken over."""
_MOST_ROWS = 2000


@dataclass(frozen=True, kw_only=True)
class Row:
    """How training stood at one moment: an entry of ``HSA2C.history``.

    Args:
        timesteps: Environment steps of all threads so far.
        seconds: Seconds of training so far, pauses between calls of ``learn`` left out.
        episodes: Episodes that have ended so far.
        mean_return: Mean return of the last 100 episodes, with actions drawn at random as training does; nan before the
            first has ended.
        mean_length: Mean length of these episodes, in environment steps.
        steps_per_second: Environment steps per second, since this call of ``learn`` began.
        entropy: Mean entropy of the policy, over the updates that this row reports.
        value_loss: Mean squared error of values, over the same updates.
        policy_loss: Mean of -log pi(a|s) A, over the same updates.
        learning_rate: The learning rate then.
    """

    timesteps: int
    seconds: float
    episodes: int
    mean_return: float
    mean_length: float
    steps_per_second: float
    entropy: float
    value_loss: float
    policy_loss: float
    learning_rate: float


class History:
    """Rows of all calls of ``learn``."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.episodes = 0
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._lengths: deque[int] = deque(maxlen=WINDOW)
        self._before, self._first, self._began = 0.0, 0, time.perf_counter()

    def begin(self, timesteps: int) -> None:
        """A call of ``learn`` begins."""
        self._before = self.rows[-1].seconds if self.rows else 0.0
        self._first, self._began = timesteps, time.perf_counter()

    def add(self, tally: Tally) -> Row:
        """What an engine told."""
        self.episodes += len(tally.returns)
        self._returns.extend(tally.returns)
        self._lengths.extend(tally.lengths)
        spent = time.perf_counter() - self._began
        row = Row(
            timesteps=tally.timesteps,
            seconds=self._before + spent,
            episodes=self.episodes,
            mean_return=_mean(self._returns),
            mean_length=_mean(self._lengths),
            steps_per_second=(tally.timesteps - self._first) / max(spent, 1e-9),
            entropy=float(tally.entropy),
            value_loss=float(tally.value_loss),
            policy_loss=float(tally.policy_loss),
            learning_rate=float(tally.learning_rate),
        )
        self.rows.append(row)
        return row

    def put(self, *, timesteps: int, seconds: float, mean_return: float) -> Row:
        """A row of a training that told no more than this; seconds are since ``begin``."""
        nothing = dict.fromkeys(("mean_length", "entropy", "value_loss", "policy_loss", "learning_rate"), math.nan)
        row = Row(
            timesteps=timesteps,
            seconds=self._before + seconds,
            episodes=self.episodes,
            mean_return=mean_return,
            steps_per_second=(timesteps - self._first) / max(seconds, 1e-9),
            **nothing,
        )
        self.rows.append(row)
        return row

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON has it; rows are thinned where there are thousands, and the last one is kept."""
        stride = -(-len(self.rows) // _MOST_ROWS) or 1
        kept = self.rows[::-1][::stride][::-1]
        # JSON knows no NaN.
        rows = [{name: None if value != value else value for name, value in asdict(row).items()} for row in kept]
        return {"rows": rows, "returns": list(self._returns), "lengths": list(self._lengths)}

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> History:
        """The opposite: means go on over the episodes that ended before."""
        history = cls()
        history._returns.extend(kept["returns"])
        history._lengths.extend(kept["lengths"])
        for row in kept["rows"]:
            known: dict[str, Any] = {name: math.nan if value is None else value for name, value in row.items()}
            history.rows.append(Row(**known))
        history.episodes = history.rows[-1].episodes if history.rows else 0
        return history


def _mean(values: deque[Any]) -> float:
    return sum(values) / len(values) if values else math.nan
