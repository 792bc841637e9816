"""A stage for small programs: what each node does, and when it said what."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

import flockstep as fs
from flockstep.testing.law import Page


@dataclass
class Stage:
    """Node ``rank`` runs ``parts[rank]``; what it says is kept with the virtual time and the rank."""

    parts: list[Callable]
    said: list[tuple[float, int, object]] = field(default_factory=list)
    trace: fs.Trace | None = None

    async def run(self, node):
        node.say = lambda what: self.said.append((node.world.kernel.now, node.rank, what))
        await self.parts[node.rank](node)

    def of(self, rank):
        """What one node said, and when, to the microsecond."""
        return [(round(time, 6), what) for time, who, what in self.said if who == rank]


@pytest.fixture
def play():
    """Plays parts on virtual nodes whose gradients take a second, and gives the stage back."""

    def run(*parts, **rest):
        stage = Stage(list(parts))
        rest = {"compute": fs.Compute(step="1 s"), "start_skew": 0.0, **rest}
        stage.trace = fs.simulate(stage, Page(), nodes=len(parts), steps=1, **rest)
        return stage

    return run
