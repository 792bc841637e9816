"""Lock-free workers of one virtual node: they share its model, and take turns wherever one of them waits.

A member reads the model when it begins a gradient, and others write before it is done: the gradient is stale. When two
write at one moment, the second has loaded what it stores before the first has stored: the first's write is lost, as it
would be between two cores. Both are counted. Where computing takes no time, nothing happens at one moment rather than
another, and writes follow each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flockstep.backends.sim.kernel import Suspend
from flockstep.node import stream

if TYPE_CHECKING:
    from flockstep.backends.sim.training import TrainingNode

# Two cores are never in step to the last digit, though a constant time per gradient would have them so.
_JITTER = 1e-6


class Crew:
    """The members of one node."""

    def __init__(self, node: TrainingNode, threads: int) -> None:
        self._node, world = node, node.world
        members = range(threads)
        self._data = [node.data if m == 0 else stream(world.seed, node.rank, "data", m) for m in members]
        self._clocks = [stream(world.seed, node.rank, "clock", 1 + m) for m in members]
        self._writes = 0

    async def work(self, steps: int) -> int:
        """Let every member take so many steps; how many they took before the run was over."""
        node, kernel = self._node, self._node.world.kernel
        members = [kernel.start(self._member(m, steps), node, main=False) for m in range(len(self._data))]
        for member in members:
            # The node waits for members of its own, who compute.
            member.awaited_as = "computing"
        return sum([await member for member in members])

    async def _member(self, member: int, steps: int) -> int:
        node, taken = self._node, 0
        counting = node.steps().__aiter__()
        while taken < steps:
            try:
                await counting.__anext__()
            except StopAsyncIteration:
                break
            await self._step(member)
            taken += 1
        return taken

    async def _step(self, member: int) -> None:
        node, before = self._node, self._writes
        g = node.workload.gradient(node.params, self._data[member])
        node.tally.gradients += 1
        await node.computing(1 + _JITTER * self._clocks[member].random())
        if node.timed:
            loaded = node.params.clone()
            await _moment(node)
            if lost := int((loaded != node.params).sum()):
                node.count("lost writes", lost)
                node.params.copy_(loaded)
        node.count("stale writes", self._writes - before)
        self._writes += 1
        await node.step(g)


def _moment(node: TrainingNode) -> Suspend:
    """Let whatever else happens now happen first."""
    kernel = node.world.kernel
    return Suspend(lambda task: kernel.at(kernel.now, kernel.resume, task))
