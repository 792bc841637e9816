"""Which questions come to nothing: drawn from a stream of their own, so that no other number changes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from flockstep.backends.sim.faults import Fault, Loss


class Losses:
    """The declared losses of a run."""

    def __init__(self, faults: Iterable[Fault], rng: np.random.Generator) -> None:
        self._declared = [fault for fault in faults if isinstance(fault, Loss)]
        self._rng = rng

    def draw(self, now: float) -> str:
        """What is lost of an exchange that begins now: its "question", its "reply" or, mostly, nothing: ""."""
        for loss in self._declared:
            share = loss.share_at(now)
            if share and (drawn := self._rng.random()) < share:
                return "question" if drawn < share / 2 else "reply"
        return ""
