"""What the virtual nodes of one run share, and how one lives and dies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flockstep.backends.sim.collectives import Collectives
from flockstep.backends.sim.kernel import Kernel, Suspend, Task
from flockstep.backends.sim.mail import Mail
from flockstep.backends.sim.node import SimNode
from flockstep.backends.sim.recorder import Recorder
from flockstep.backends.sim.views import LiveCheckpoint, Views
from flockstep.backends.sim.wires import Wires
from flockstep.budget import Budget
from flockstep.node import stream
from flockstep.timeline import Timeline


class World:
    """Kernel, nodes, wires, and the record of what happened."""

    def __init__(
        self, *, size: int, steps: int | Budget, every: int, seed: int, timeline: Timeline | None = None
    ) -> None:
        self.size, self.steps, self.every, self.seed = size, steps, every, seed
        self.timeline = timeline
        """Told who does what when, where somebody wants to know."""
        self.kernel = Kernel(stream(seed, 0, "ties"))
        self.nodes: list[SimNode] = []
        self.results: dict[int, Any] = {}
        self.recorder: Recorder | None = None
        self.away: set[int] = set()
        """Dead nodes that will come back."""
        self._at_the_end: dict[int, Task] = {}
        self.wires: Wires
        self.meetings: Collectives
        self.views: Views | None = None
        """The same, where nodes may come and go."""
        self.mail: Mail

    def computing(self, until: float) -> Callable[[Task], None]:
        """Suspend until a moment; the time counts as computing."""
        kernel = self.kernel

        def begin(task: Task) -> None:
            task.mark("computing")
            kernel.at(until, kernel.resume, task)

        return begin

    def lingering(self) -> Callable[[Task], None]:
        """Suspend for a second, which counts as waiting."""

        def begin(task: Task) -> None:
            task.mark("waiting")
            task.where = lambda: "linger"
            self.kernel.at(self.kernel.now + 1.0, self.kernel.resume, task)

        return begin

    def leaving(self, node: SimNode) -> Callable[[Task], None]:
        """Suspend until every living node is done: until then this one answers, and its model may still change."""

        def begin(task: Task) -> None:
            task.where = lambda: "its end, until the others have come to theirs"
            self._at_the_end[node.rank] = task
            self._let_go()

        return begin

    def _let_go(self) -> None:
        done = {*self._at_the_end, *self.kernel.returned}
        if self._at_the_end and all(node.rank in done for node in self.nodes if node.alive):
            leaving, self._at_the_end = self._at_the_end, {}
            for task in leaving.values():
                self.kernel.at(self.kernel.now, self.kernel.resume, task)

    def crash(self, rank: int, back_after: float | None) -> None:
        """A node dies now; another may take its place later."""
        node = self.nodes[rank]
        if not node.alive:
            return
        node.alive = False
        node.tally.seconds = self.kernel.now
        self.kernel.cancel(node)
        self.meetings.lose(rank)
        self.mail.lose(rank)
        self.wires.lose(rank)
        self._at_the_end.pop(rank, None)
        self._let_go()
        if back_after is not None:
            # A task from now on: a run does not end while somebody is still to come.
            self.away.add(rank)
            heir = node.anew()
            self.kernel.start(self._return(heir, self.kernel.now + back_after), heir, main=True)
        if self.recorder is not None:
            self.recorder.lose()

    def stand_still(self, rank: int, until: float) -> None:
        """A node has been silent for too long: if the others can go on without it, they do."""
        if self.views is not None and self.views.may_go_on(self.views.agreeing - {rank}):
            self.leave_out(rank, until)

    def leave_out(self, rank: int, until: float) -> None:
        """The others go on without a node that lives; it will find out, and come again, at a later moment."""
        node, views = self.nodes[rank], self.views
        if views is None or not node.alive or rank not in views.view or rank in self.kernel.returned:
            return
        self.crash(rank, until - self.kernel.now)
        node.count("left out")
        views.notice(node)

    def part(self, sides: Sequence[int], until: float) -> None:
        """Nodes have not heard of the other sides for too long: one that is large enough goes on without them."""
        views = self.views
        if views is None:
            return
        groups: dict[int, set[int]] = {}
        for rank in sorted(views.view):
            if self.nodes[rank].alive:
                groups.setdefault(sides[rank], set()).add(rank)
        largest = max(groups.values(), key=len, default=set())
        if views.may_go_on(largest):
            for rank in sorted(views.view - largest):
                self.leave_out(rank, until)

    async def life(self, node: SimNode, start: float) -> None:
        """A node's whole run."""
        await Suspend(lambda task: self.kernel.at(start, self.kernel.resume, task))
        await self._live(node)

    async def _return(self, node: SimNode, moment: float) -> None:
        await Suspend(lambda task: self.kernel.first(moment, self.kernel.resume, task))
        rank = node.rank
        self.away.remove(rank)
        self.kernel.crashed.remove(rank)
        self.mail.forget(rank)
        if self.recorder is not None:
            self.recorder.forget(rank)
        self.nodes[rank] = node
        node.count("restarts")
        if self.views is not None:
            node.first_step = math.inf
            checkpoint: LiveCheckpoint | None = await self.views.knock(node)
            node.first_step = 0 if checkpoint is None else checkpoint.step_count
            if checkpoint is not None and not node.take_over(checkpoint):
                self.views.finish(node)
                self._end(node)
                return
        await self._live(node)

    async def _live(self, node: SimNode) -> None:
        self.results[node.rank] = await node.program()
        if self.views is not None:
            self.views.finish(node)
        self._end(node)

    def _end(self, node: SimNode) -> None:
        node.tally.seconds = self.kernel.now if node.left_at is None else node.left_at
        if self.recorder is not None:
            self.recorder.finish(node)
