"""A node's part in an elastic run: letting others in between two of its steps, and coming in where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from flockstep.backends.real.rounds.live_checkpoint import LiveCheckpoint
from flockstep.errors import FlockstepError

if TYPE_CHECKING:
    from flockstep.backends.real.drive import Background
    from flockstep.backends.real.rounds.elastic_fabric import ElasticFabric
    from flockstep.node import Channels


class Stateful(Protocol):
    """A node that can hand on all that it is between two steps."""

    rank: int
    size: int
    incarnation: int
    step_count: int
    channels: Channels
    kept: dict[str, Tensor]
    own: frozenset[str]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies of all tensors, and everything else as plain values; without what is this node's own."""

    def take_over(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Be where another node was."""


class TakingPart:
    """What a node does about it."""

    def __init__(self, node: Stateful, fabric: ElasticFabric) -> None:
        self._node, self.fabric = node, fabric
        self._begun: list[tuple[str, int, Background[Any]]] = []
        self.exchanges = False
        """Whether its strategy gives every node a message of its own, as averages in few bits do."""
        fabric.last_words = self._let_in

    def begun(self, channel: str, round: int, task: Background[Any]) -> None:
        """A round was begun in the background."""
        self._begun = [begun for begun in self._begun if not begun[2].taken]
        self._begun.append((channel, round, task))

    def at_boundary(self) -> None:
        """The node stands between two steps: LeftOut if the others have gone on; whoever waits may have its state."""
        self.fabric.check()
        self.fabric.tidy()
        # At step 0 a program that takes over would begin as if it were the first.
        if self._node.step_count > 0:
            self._let_in()

    def _let_in(self) -> None:
        if self.fabric.wanted:
            self.fabric.let_in(self._live_checkpoint(), dict(self._node.channels.rounds))

    def _live_checkpoint(self) -> LiveCheckpoint:
        taken = dict(self._node.channels.rounds)
        for channel, round, task in self._begun:
            if not task.taken:
                taken[channel] = min(taken[channel], round)
        tensors, plain = self._node.state()
        plain |= {"exchanges": self.exchanges, "declared": self._node.size}
        return LiveCheckpoint(tensors, plain, taken)

    def come_in(self, found: Callable[[], bool] = lambda: False) -> None:
        """Wait until the others let this node in, and be where they are; or until it has ``found`` that there are no
        others, and that it begins the run again.
        """
        if self.fabric.assembly.is_left_out:
            self.fabric.assembly.begin_again()
        self._begun.clear()
        state = self.fabric.come_in(found)
        # Later than any before it; whoever let it in would have told it of one.
        self._node.incarnation = self.fabric.mailbox().members.me.incarnation // 10**6
        self._node.kept.clear()
        self._node.own = frozenset()
        if state is not None:
            self._check_number(state)
            self._node.take_over(state.tensors, state.plain)
            self._node.channels.rounds = dict(state.rounds)

    def _check_number(self, state: LiveCheckpoint) -> None:
        declared, rank = int(state.plain["declared"]), self._node.rank
        if state.plain["exchanges"] and rank >= declared:
            raise FlockstepError(
                f"node {rank} is one more than the {declared} that the run began with, for whom an average in few bits "
                "is cut\n  come in the place of one that has died: set RANK, or give --rank",
                rank=rank,
            )
