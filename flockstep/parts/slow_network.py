"""A word where the network is so slow that nodes hardly learn from each other.

Strategies that wait for nobody average as often as the link allows. Models that went their own ways for long may have
found different answers, and the mean of two answers need not be one: a run may end worse than one node by itself would,
though nothing failed. No node can see that in its own gradients. What it can see is how many steps an average takes,
and from ``SELDOM`` on that is said, once. docs/defaults.md has what we measured.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("flockstep")
SELDOM = 32
"""Steps from one average to the next: at 16 we have seen none lose to one node alone for that, at 32 some."""


class SlowNetworkWarning:
    """Watches how many steps an average takes, on one node."""

    def __init__(self, owner: str, *, remedy: str, speaks: bool = True) -> None:
        self._owner, self._remedy, self._speaks = owner, remedy, speaks

    def see(self, steps: int) -> None:
        """One more average took so many."""
        if self._speaks and steps >= SELDOM:
            self._speaks = False
            _log.warning(
                "%s: an average takes %d steps over this network. Models that meet so rarely may end up worse than one "
                "node by itself: compare with a run of one node, or %s",
                self._owner,
                steps,
                self._remedy,
            )
