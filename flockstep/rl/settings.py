"""The numbers of HSA2C, with the defaults that actor-critic methods are known by."""

from __future__ import annotations

from dataclasses import dataclass

from flockstep import check
from flockstep.rl.rates import Constant, Linear, Rate, rate_at


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every hyper-parameter of HSA2C. Names are those of stable-baselines3 where they mean the same.

    Args:
        threads: Lock-free workers that share one policy.
        envs_per_thread: Copies of the environment that each thread steps together.
        period: Updates of a thread between two exchanges with a server; alone, between two reports, each a row of the
            history.
        n_steps: Environment steps of each copy in one update.
        gamma: Discount of later rewards, from 0 to 1 per environment step.
        learning_rate: A number falls to 0 linearly over one call of ``learn``; ``Constant`` and ``Linear`` go by the
            steps of the whole training; a function gets what remains of one call, from 1 to 0.
        ent_coef: Weight of the entropy in the loss.
        vf_coef: Weight of the squared error of values in the loss.
        gae_lambda: How much of a return is rewards that came, beside values that were expected, from 0 to 1; 1: all.
        normalize_advantage: Whether the advantages of an update are brought to mean 0 and deviation 1.
        max_grad_norm: Largest Euclidean norm of an update's gradient; what is longer is scaled down.
        rms_decay: Decay of RMSprop's mean of squared gradients, from 0 to 1 per update.
        rms_eps: What RMSprop adds to that mean, inside the root as in TensorFlow.

    Example:
        ActorCritic(env="CartPole-v1", settings=Settings(envs_per_thread=4, n_steps=8))
    """

    threads: int = 1
    envs_per_thread: int = 8
    period: int = 100
    n_steps: int = 5
    gamma: float = 0.99
    learning_rate: Rate = 7e-4
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    gae_lambda: float = 1.0
    normalize_advantage: bool = False
    max_grad_norm: float = 0.5
    rms_decay: float = 0.99
    rms_eps: float = 1e-5

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
