"""The user's own loop on virtual nodes: each has a stack of its own, a greenlet, and all share one thread.

Whatever a node's code could see of another through torch, NumPy or Python (random states, autograd's mode) is put aside
when it waits and put back when it goes on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from greenlet import GreenletExit, getcurrent, greenlet
from torch import Tensor, nn

from flockstep.backends.loop import place
from flockstep.backends.loop.driver import Driver
from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.sim.cluster.compute import Clock
from flockstep.backends.sim.node import SimNode
from flockstep.elastic import Elastic
from flockstep.message import NOTHING

if TYPE_CHECKING:
    from flockstep.backends.sim.world import World

_NO_ISLANDS = (
    "a virtual node cannot be an island yet\n  simulate with a whole model on each node, or use real processes"
)


class SimJoinedNode(JoinedNode, SimNode):
    """A virtual node in the user's loop: a step takes the virtual time of a gradient."""

    virtual = True

    def __init__(self, world: World, rank: int, clock: Clock) -> None:
        SimNode.__init__(self, world, rank, clock)
        self.rows = []
        self.params = torch.empty(0)

    @property
    def now(self) -> float:  # type: ignore[override]
        """Virtual seconds."""
        return self.world.kernel.now

    async def gradient(self, x: Tensor) -> Tensor:
        """The user's gradient, once the time of one has passed."""
        g = await super().gradient(x)
        await self.computing()
        return g


class SimPlace:
    """A virtual seat."""

    def __init__(self, node: SimJoinedNode, seed: int) -> None:
        self.rank, self.size, self.seed, self._node = node.rank, node.size, seed, node
        self.elastic: Elastic | None = None
        self.column, self.columns = 0, 1
        self.last: JoinedNode | None = None
        self._inside = False

    def on_island(self, ranks: tuple[int, ...]) -> place.Place:
        """The simulator has no islands yet."""
        raise NotImplementedError(_NO_ISLANDS)

    def start_group(self, backend: str) -> None:
        """Nor groups of torch.distributed."""
        raise NotImplementedError(_NO_ISLANDS)

    def seat(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        flat: FlatModel,
        *,
        one_sided: bool,
        strategy: str,
        elastic: Elastic | None,
    ) -> JoinedNode:
        """The node, with this model. Whether its run is elastic, ``simulate`` was told."""
        node = self._node
        if self._inside:
            raise NotImplementedError(
                "a join inside another one cannot be simulated: a virtual node trains one model at a time\n"
                "  put both into one module and join that, or use real nodes"
            )
        self._inside = True
        node.model, node.optimizer, node.flat, node.params = model, optimizer, flat, flat.vector
        node.driver = Driver(flat, switch_to_kernel, alone=node.size == 1)
        # Whatever was joined here before: as on real nodes, whose joins have a node each.
        node.step_count = node.tally.steps = 0
        node.kept, node.kept_before = {}, {}
        node.channels.start_anew()
        node.world.mail.silence(node.rank)
        node.left_at = None
        node.one_sided, node.outlives_deaths, node.onlookers = one_sided, one_sided, ()
        self.last = node
        return node

    def admit(self, node: JoinedNode, strategy: str, checkpoints: Path | None) -> bool:
        """Virtual nodes are all there from the beginning, and come in together."""
        return False

    def leave(self, node: JoinedNode) -> None:
        """Leave together: an exchange of nothing, which everyone must have come to; but nobody waits for the dead."""
        if node.one_sided or self._node.world.views is not None:
            self._node.left_at = node.now
            switch_to_kernel(self._node.world.leaving(self._node))
        else:
            node.driver.call(node.exchange([NOTHING] * node.size, "leave"))

        self._inside = False

    def fail(self, node: JoinedNode, error: BaseException) -> None:
        """Nobody need be told: the kernel ends the run for everybody, unless all have been refused alike."""
        self._inside = False


def switch_to_kernel(begin: Any) -> Any:
    """Wait, as a virtual node: the kernel goes on with others and comes back with what was waited for."""
    if torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "a step inside of backward() (a hook on gradients) cannot be taken on virtual nodes: all share one thread, "
            "and its backward pass\n  call step() after backward(), or use real nodes"
        )
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "virtual nodes share one thread, and cannot wait inside of torch.inference_mode()\n"
            "  call this outside of it, or under no_grad()"
        )
    # Others must not find it on.
    autocast = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    for device in autocast:
        torch.set_autocast_enabled(device, False)
    try:
        return getcurrent().parent.switch(begin)
    finally:
        for device in autocast:
            torch.set_autocast_enabled(device, True)


class Fiber:
    """A plain function that can wait: to the kernel it looks like something to ``await``."""

    def __init__(self, function: Callable[[], Any], seat: SimPlace) -> None:
        self._greenlet = greenlet(function)
        self._seat = seat
        self._world = _World.now()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self  # type: ignore[return-value]

    def __iter__(self) -> Fiber:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Go on until the function waits again; StopIteration with its result at its end."""
        return self._go(lambda: self._greenlet.switch(value) if self._greenlet else self._greenlet.switch())

    def throw(self, kind: Any, error: BaseException | None = None, where: Any = None) -> Any:
        """Raise where the function waits."""
        error = kind if error is None else error
        return self._go(lambda: self._greenlet.throw(type(error), error, where))

    def close(self) -> None:
        """End the function where it stands."""
        if self._greenlet and not self._greenlet.dead:
            self._go(lambda: self._greenlet.throw(GreenletExit), ending=True)

    def _go(self, move: Callable[[], Any], *, ending: bool = False) -> Any:
        outside, before = _World.now(), place.set_current(self._seat)
        self._world.restore()
        self._greenlet.parent = getcurrent()
        try:
            result = move()
        finally:
            self._world = _World.now()
            outside.restore()
            place.set_current(before)
        if self._greenlet.dead and not ending:
            raise StopIteration(result)
        return result


class _World:
    """Random states and autograd's mode at one moment."""

    def __init__(self) -> None:
        self.torch = torch.get_rng_state()
        # Only where it is in use: asking for it would start CUDA.
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        self.numpy = np.random.get_state()
        self.python = random.getstate()
        self.grad = torch.is_grad_enabled()

    @classmethod
    def now(cls) -> _World:
        return cls()

    def restore(self) -> None:
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        np.random.set_state(self.numpy)
        random.setstate(self.python)
        torch.set_grad_enabled(self.grad)
