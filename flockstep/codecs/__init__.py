"""Codecs: a vector to bytes and back. ``Message.nbytes`` is what the exchange costs."""

from flockstep.codecs.cast import Cast
from flockstep.codecs.codec import Codec
from flockstep.codecs.modular import Modular
from flockstep.codecs.raw import Raw
from flockstep.codecs.stochastic import Stochastic
from flockstep.codecs.topk import TopK

__all__ = ["Cast", "Codec", "Modular", "Raw", "Stochastic", "TopK"]
