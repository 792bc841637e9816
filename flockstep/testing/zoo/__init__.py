"""Situations that users' loops are in, each as small as it can be."""

from flockstep.testing.zoo.after_joining import LATER
from flockstep.testing.zoo.buffers import BUFFERS
from flockstep.testing.zoo.models import MODELS
from flockstep.testing.zoo.precision import PRECISION
from flockstep.testing.zoo.situation import Setting, Situation
from flockstep.testing.zoo.turns import TURNS
from flockstep.testing.zoo.with_optimizers import OPTIMIZERS

SITUATIONS: tuple[Situation, ...] = (*MODELS, *BUFFERS, *OPTIMIZERS, *TURNS, *PRECISION, *LATER)

__all__ = ["SITUATIONS", "Setting", "Situation"]
