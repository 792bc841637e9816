"""The contract of node.py as programs: every backend runs them and must come to the same end.

check_backend(fs.simulate)
check_backend(functools.partial(fs.launch, on="threads"))
"""

from __future__ import annotations

from flockstep.testing import collectives, failures, messages, onesided
from flockstep.testing.law import Law, Run

_KINDS = [kind for module in (collectives, messages, onesided, failures) for kind in vars(module).values()]

BACKEND_LAWS: tuple[Law, ...] = tuple(
    kind() for kind in _KINDS if isinstance(kind, type) and issubclass(kind, Law) and kind is not Law
)


def check_backend(run: Run) -> None:
    """Raise LawBroken, or what the run raised, unless a backend keeps the whole contract of nodes (``BACKEND_LAWS``).

    Args:
        run: The backend: ``run(strategy, workload, nodes=, steps=, timeout=)`` gives a trace.

    Example:
        check_backend(fs.simulate)
        check_backend(functools.partial(fs.launch, on="threads"))
    """
    for law in BACKEND_LAWS:
        law.check(run)
