"""What a worker has to tell: sums that can be added to another's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flockstep.rl.engine import Tally


@dataclass
class Totals:
    """Since it was last told."""

    updates: int = 0
    policy: float = 0.0
    value: float = 0.0
    entropy: float = 0.0
    rate: float = 0.0
    ended: list[tuple[float, int]] = field(default_factory=list)
    """Return and length of episodes."""
    last: bool = False
    """Whether there is no more to do."""

    def add(self, other: Totals) -> None:
        """Another's, too."""
        for name in ("updates", "policy", "value", "entropy"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.rate = other.rate
        self.ended += other.ended

    def tally(self, timesteps: int) -> Tally:
        """As means."""
        policy, value, entropy = (
            total / self.updates if self.updates else math.nan for total in (self.policy, self.value, self.entropy)
        )
        return Tally(
            timesteps=timesteps,
            returns=[score for score, _ in self.ended],
            lengths=[length for _, length in self.ended],
            policy_loss=policy,
            value_loss=value,
            entropy=entropy,
            learning_rate=self.rate,
        )
