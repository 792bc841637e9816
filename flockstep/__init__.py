"""Train in a flock, not in lockstep."""

import lazy_loader

__version__ = "0.1.0"

# What there is stands in the stub beside this file. It is imported when it is first asked for: torch takes seconds, and
# the command line's help needs none of it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
