"""How long a node whose loop has ended goes on answering: as long as anybody who lives still trains.

No fixed time would do, since a slow peer may need hours for what is left of its loop. The heartbeat finds out who
lives: a peer that trains answers it, and one that does not is lost, and waited for no longer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flockstep.backends.real.membership.members import Members
from flockstep.errors import Deadlock, nodes_named

# Before anybody wonders why nothing ends; not sooner, since nodes of one speed end within a moment.
_UNREMARKABLE = 10.0
_log = logging.getLogger("flockstep")


def wait_for_the_living(members: Members, timeout: float, over: Callable[[], object]) -> None:
    """Until nobody who lives still trains, or ``over``; Deadlock names whoever never came at all."""
    began, me = time.monotonic(), members.me.rank
    said = False
    with members.changed:
        while not (members.all_have_left() or over()):
            training, missing = members.in_training(), members.never_came()
            waited = time.monotonic() - began
            if not training and waited >= timeout:
                who = nodes_named(list(missing))
                raise Deadlock(f"node {me} has returned and waited {timeout:g} s for {who}, which never came", rank=me)
            if not said and waited >= min(_UNREMARKABLE, timeout):
                said = True
                who = nodes_named([*training, *missing])
                _log.warning("node %d has ended its loop, and answers until the others have, too: %s", me, who)
            # Whoever comes, leaves or is lost wakes this; the clock alone must.
            members.changed.wait(max(0.01, _next_look(waited, timeout, said=said)))


def _next_look(waited: float, timeout: float, *, said: bool) -> float:
    moments = [timeout] if said else [min(_UNREMARKABLE, timeout), timeout]
    return next((moment - waited for moment in moments if moment > waited), timeout)
