"""A real node in the user's loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flockstep.backends.loop import checkpoint
from flockstep.backends.loop.driver import Driver
from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.initial_sync import first_difference
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.real.drive import in_background
from flockstep.backends.real.mailbox.mail_fabric import MailFabric
from flockstep.backends.real.node import RealNode
from flockstep.elastic import Elastic
from flockstep.errors import FlockstepError, LeftOut, Mismatch, located

if TYPE_CHECKING:
    from flockstep.backends.real.join.joined import RealPlace


class RealJoinedNode(JoinedNode, RealNode):
    """A real node in the user's loop. What happens between two steps is the user's computing."""

    def __init__(
        self,
        place: RealPlace,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        flat: FlatModel,
        one_sided: bool,
        strategy: str,
        elastic: Elastic | None,
    ) -> None:
        fabric = place.make_fabric(one_sided, elastic)
        RealNode.__init__(self, fabric, place.rank, place.size, place.seed, place.keeping, strategy)
        self.one_sided, self.outlives_deaths = one_sided, one_sided or self.elastic
        self.lines: list[str] = []
        """What nodes that train the same say alike."""
        self.onlookers = () if self.journal is None else (self.journal.row,)
        self.model, self.optimizer, self.flat, self.params = model, optimizer, flat, flat.vector
        self.driver = Driver(flat, lambda block: block.call(), alone=place.size == 1)

    @property
    def address(self) -> str:
        """Where this node's mailbox is."""
        return self.fabric.mailbox().members.me.address if isinstance(self.fabric, MailFabric) else ""

    def stop_computing(self) -> None:
        self.stopwatch.turn(None)

    def start_computing(self) -> None:
        self.stopwatch.turn("computing")
        self.tally.seconds = self.now
        self.glance()

    def fail(self, error: Exception) -> None:
        """Let nobody here wait any longer."""
        self.fabric.fail(located(error, self.rank, self.now))

    def total(self, t: Tensor) -> Tensor:
        self._in_its_own_task("total")
        return super().total(t)

    def agreed(self, t: Tensor) -> Tensor:
        self._in_its_own_task("agreed")
        return super().agreed(t)

    def _in_its_own_task(self, verb: str) -> None:
        # Of what happens in the background, each member's clock decides when.
        if self.island is not None and in_background():
            raise FlockstepError(
                f"node.{verb} was called in the background, where members of an island do not come in one order\n"
                "  call it in the node's own task, before what is spawned",
                rank=self.rank,
            )

    # In an elastic run ------------------------------------------------------------------------------------------------

    def at_boundary(self) -> None:
        if self.part is not None:
            try:
                self.part.at_boundary()
            except LeftOut:
                self.driver.begin_again()

    def come_in_again(self) -> None:
        if self.part is not None:
            self.count("times left out")
            with self.spending("waiting"):
                self.part.come_in()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, plain = checkpoint.contents(self, checkpoint.Moment.of(self), all_of_it=False)
        return tensors, {**plain, "lines": self.lines}

    def take_over(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        if plain["lines"] != self.lines:
            raise Mismatch(first_difference(plain["lines"], self.lines, int(plain["rank"]), self.rank), rank=self.rank)
        checkpoint.restore(self, tensors, plain, exactly=True)
