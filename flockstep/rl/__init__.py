"""HSA2C: actor-critic, lock-free between cores; for gymnasium environments."""

from flockstep.rl.callbacks import CheckpointCallback, EvalCallback
from flockstep.rl.evaluation import Evaluation
from flockstep.rl.history import Row
from flockstep.rl.hsa2c import HSA2C
from flockstep.rl.mlp import MlpPolicy
from flockstep.rl.rates import Constant, Linear
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
