"""HSA2C: actor-critic, lock-free between cores; for gymnasium environments."""

from flockstep.rl.hsa2c import HSA2C
from flockstep.rl.policies.mlp import MlpPolicy
from flockstep.rl.rates import Constant, Linear
from flockstep.rl.reporting.callbacks import CheckpointCallback, EvalCallback
from flockstep.rl.reporting.evaluation import Evaluation
from flockstep.rl.reporting.history import Row
from flockstep.rl.rmsprop import RMSpropTF
from flockstep.rl.settings import Settings

__all__ = [
    "HSA2C",
    "CheckpointCallback",
    "Constant",
    "EvalCallback",
    "Evaluation",
    "Linear",
    "MlpPolicy",
    "RMSpropTF",
    "Row",
    "Settings",
]
