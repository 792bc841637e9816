"""Losses of the average model along a run, measured for free: looking takes no virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from flockstep.errors import Diverged
from flockstep.trace import Row, average_and_spread
from flockstep.workloads.workload import Workload

if TYPE_CHECKING:
    from flockstep.backends.sim.node import SimNode
    from flockstep.backends.sim.world import World

_Shown = tuple[Tensor, int]
"""A node's model at some step, and the bytes it had sent by then."""


class Recorder:
    """Nodes in step: each shows its model at the same step numbers; when all living have, the average is measured."""

    def __init__(self, world: World, workload: Workload, on_row: Callable[[Row], None] | None) -> None:
        self.rows: list[Row] = []
        self._world, self._workload, self._on_row = world, workload, on_row
        self._shown: dict[int, dict[int, _Shown]] = {}
        self._final: dict[int, _Shown] = {}

    def begin_step(self, node: SimNode, step: int) -> None:
        """A node begins a step; of some, the model is to be recorded."""
        if step % self._world.every:
            return
        if (node.incarnation or node.first_step) and self.rows and step <= self.rows[-1].step:
            # It came back; the others were here long ago.
            return
        self._shown.setdefault(step, {})[node.rank] = node.params.clone(), node.tally.bytes_sent
        self._measure(step)

    def finish(self, node: SimNode) -> None:
        """A node is done: the last record is of the final models."""
        self._final[node.rank] = node.params, node.tally.bytes_sent
        self._measure_final()

    def lose(self) -> None:
        """A node died: what waited for it need not wait any more, as long as somebody is left."""
        if not any(node.alive for node in self._world.nodes):
            return
        for step in sorted(self._shown):
            self._measure(step)
        self._measure_final()

    def forget(self, rank: int) -> None:
        """A node begins anew: what it showed before does not count any more."""
        for shown in (*self._shown.values(), self._final):
            shown.pop(rank, None)

    def _measure(self, step: int) -> None:
        shown = self._shown[step]
        if self._complete(shown, step):
            del self._shown[step]
            self._record(step, shown)

    def _measure_final(self) -> None:
        if self._final and not self._world.away and self._complete(self._final, math.inf):
            steps = [node.step_count for node in self._world.nodes if node.alive]
            self._record(round(sum(steps) / len(steps)), self._final)

    def _complete(self, shown: dict[int, _Shown], step: float) -> bool:
        return all(node.rank in shown for node in self._world.nodes if node.alive and node.first_step <= step)

    def _record(self, step: int, shown: dict[int, _Shown]) -> None:
        average, spread = average_and_spread([shown[rank][0] for rank in sorted(shown)])
        loss, now = self._workload.loss(average), self._world.kernel.now
        if not math.isfinite(loss):
            raise Diverged(f"the loss of the average model is {loss} at step {step}", time=now)
        sent = sum(nbytes for _, nbytes in shown.values()) / len(shown)
        self.rows.append(Row(now, step, loss, sent, spread))
        if self._on_row is not None:
            self._on_row(self.rows[-1])


class Glances(Recorder):
    """Nodes that step on their own: now and then a look at all of them at one moment, wherever each is."""

    _begun = 0

    def begin_step(self, node: SimNode, step: int) -> None:
        """Whenever all together have begun as many steps as there are nodes, times the period."""
        size, every = self._world.size, self._world.every
        if self._begun % (size * every) == 0:
            living = (node for node in self._world.nodes if node.alive)
            self._record(self._begun // size, {node.rank: (node.params, node.tally.bytes_sent) for node in living})
        self._begun += 1
