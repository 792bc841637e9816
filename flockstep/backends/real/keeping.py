"""What a real run is asked to keep of where its time and bytes go.

FLOCKSTEP_JOURNAL   a folder: every node writes there, while it trains, what onlookers want to see
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flockstep.live.journal import Journal


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """A timeline for the trace, a journal for onlookers, both, or nothing."""

    timeline: bool = False
    journal: str = ""
    """The folder of the journals."""

    @classmethod
    def from_environment(cls, *, timeline: bool = False) -> Keeping:
        """With the journal that the environment asks for."""
        return cls(timeline=timeline, journal=os.environ.get("FLOCKSTEP_JOURNAL", ""))

    def open_journal(self, rank: int, size: int, strategy: str) -> Journal | None:
        """A node's own journal, where there is to be one."""
        if not self.journal:
            return None
        # Only here: a run that nobody watches need not know how.
        from flockstep.live.journal import open_journal

        return open_journal(self.journal, rank=rank, size=size, strategy=strategy)
