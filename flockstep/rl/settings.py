"""The numbers of HSA2C, with the defaults that actor-critic methods are known by."""

from __future__ import annotations

from dataclasses import dataclass

from flockstep import check
from flockstep.rl.rates import Constant, Linear, Rate, rate_at


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every hyper-parameter of HSA2C. Names are those of stable-baselines3 where they mean the same."""

    threads: int = 1
    """Lock-free workers that share one policy (p)."""
    envs_per_thread: int = 8
    period: int = 100
    """Updates of a thread between two exchanges with a server (B); alone, between two looks at the clock."""
    n_steps: int = 5
    gamma: float = 0.99
    learning_rate: Rate = 7e-4
    """A number falls to 0 linearly over one call of ``learn``; see rates.py for others."""
    ent_coef: float = 0.0
    """The entropy's weight: 0 as in stable-baselines3, and 0.01, A3C's, where HSA2C is given a CnnPolicy."""
    vf_coef: float = 0.5
    gae_lambda: float = 1.0
    """How much of a return is rewards that came, beside values that were expected; 1 is all."""
    normalize_advantage: bool = False
    max_grad_norm: float = 0.5
    rms_decay: float = 0.99
    rms_eps: float = 1e-5
    """Inside the root, as in TensorFlow."""

    def __post_init__(self) -> None:
        for name in ("threads", "envs_per_thread", "period", "n_steps"):
            check.whole("HSA2C", name, getattr(self, name))
        for name in ("gamma", "gae_lambda", "rms_decay"):
            check.fraction("HSA2C", name, getattr(self, name))
        for name in ("ent_coef", "vf_coef"):
            check.not_negative("HSA2C", name, getattr(self, name))
        for name in ("max_grad_norm", "rms_eps"):
            check.positive("HSA2C", name, getattr(self, name))
        if not callable(self.learning_rate) and not isinstance(self.learning_rate, (Constant, Linear)):
            check.positive("HSA2C", "learning_rate", self.learning_rate)

    def rate(self, steps: float, until: float) -> float:
        """The learning rate after so many steps of a training that is to go to ``until``."""
        return rate_at(self.learning_rate, steps, until)

    @property
    def steps_per_update(self) -> int:
        """Environment steps behind one update of one thread."""
        return self.envs_per_thread * self.n_steps
