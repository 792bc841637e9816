"""Codecs: a vector to bytes and back. ``Message.nbytes`` is what the exchange costs."""

from flockstep.parts.codecs.cast import Cast
from flockstep.parts.codecs.codec import Codec
from flockstep.parts.codecs.modular import Modular
from flockstep.parts.codecs.raw import Raw
from flockstep.parts.codecs.stochastic import Stochastic
from flockstep.parts.codecs.topk import TopK

__all__ = ["Cast", "Codec", "Modular", "Raw", "Stochastic", "TopK"]
