"""Laws that every part, strategy and backend keeps, yours too: ``check_codec(MyCodec())`` raises LawBroken or not."""

from flockstep.testing.backends import BACKEND_LAWS, check_backend
from flockstep.testing.codecs import check_codec
from flockstep.testing.elastic import check_elastic
from flockstep.testing.law import Law
from flockstep.testing.loops import check_loop
from flockstep.testing.parts import LawBroken, check_topology
from flockstep.testing.strategies import check_strategy, check_synchronous

__all__ = [
    "BACKEND_LAWS",
    "Law",
    "LawBroken",
    "check_backend",
    "check_codec",
    "check_elastic",
    "check_loop",
    "check_strategy",
    "check_synchronous",
    "check_topology",
]
