"""What the virtual nodes of one run share, and how one lives and dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from flockstep.backends.sim.kernel import Kernel, Suspend, Task
from flockstep.backends.sim.mail import Mail
from flockstep.backends.sim.meetings import Meetings
from flockstep.backends.sim.node import SimNode
from flockstep.backends.sim.recorder import Recorder
from flockstep.backends.sim.wires import Wires
from flockstep.node import stream


class World:
    """Kernel, nodes, wires, and the record of what happened."""

    def __init__(self, *, size: int, steps: int, every: int, seed: int) -> None:
        self.size, self.steps, self.every, self.seed = size, steps, every, seed
        self.kernel = Kernel(stream(seed, 0, "ties"))
        self.nodes: list[SimNode] = []
        self.results: dict[int, Any] = {}
        self.recorder: Recorder | None = None
        self.wires: Wires
        self.meetings: Meetings
        self.mail: Mail

    def computing(self, seconds: float) -> Callable[[Task], None]:
        """Suspend for a while that counts as computing."""
        kernel = self.kernel

        def begin(task: Task) -> None:
            task.mark("computing")
            kernel.at(kernel.now + seconds, kernel.resume, task)

        return begin

    def crash(self, rank: int) -> None:
        """A node dies now."""
        node = self.nodes[rank]
        if node.alive:
            node.alive = False
            node.tally.seconds = self.kernel.now
            self.kernel.cancel(node)
            self.meetings.lose(rank)
            self.mail.lose(rank)
            if self.recorder is not None:
                self.recorder.lose()

    async def life(self, node: SimNode, program: Callable[[], Awaitable[Any]], start: float) -> None:
        """A node's whole run."""
        await Suspend(lambda task: self.kernel.at(start, self.kernel.resume, task))
        self.results[node.rank] = await program()
        node.tally.seconds = self.kernel.now
        if self.recorder is not None:
            self.recorder.finish(node)
