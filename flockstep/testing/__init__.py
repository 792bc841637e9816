"""Laws that every part keeps, yours too: ``check_codec(MyCodec())`` returns, or raises LawBroken."""

from flockstep.testing.parts import LawBroken, check_codec, check_topology

__all__ = ["LawBroken", "check_codec", "check_topology"]
