"""A strategy's coroutine inside the user's loop.

The coroutine parks in ``steps`` until the user calls ``optimizer.step``, gets the gradient in that step's pre-hook,
parks in ``step`` while the real ``optimizer.step`` runs, and is resumed by its post-hook. Everything else it awaits is
performed where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from torch import Tensor

from flockstep.backends.loop.flat import FlatModel
from flockstep.errors import LeftOut
from flockstep.modes import await_in_context, torch_modes


class Park:
    """Awaiting this hands control to the user's loop: for the "next" step, a "gradient", or while a "step" runs."""

    __slots__ = ("g", "what")

    def __init__(self, what: str, g: Tensor | None = None) -> None:
        self.what, self.g = what, g

    def __await__(self) -> Generator[Park, Any, Any]:
        return (yield self)


class LoopEnded(Exception):
    """Raised into a strategy that waits for a gradient when the user's loop has ended."""


class Driver:
    """Moves a coroutine forward from one parking place to the next."""

    def __init__(self, flat: FlatModel, perform: Callable[[Any], Any], *, alone: bool) -> None:
        self._flat, self._perform, self._of_all = flat, perform, not alone
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._parked: Park | None = None
        self._fresh: Tensor | None = None
        self._again: Callable[[], Coroutine[Any, Any, None]]
        self._passes = False

    def start(self, make: Callable[[], Coroutine[Any, Any, None]], come_in_again: Callable[[], None]) -> None:
        """Run a strategy up to its first parking place; and a new one, once this node has come in again, where the
        others went on without it.
        """

        def again() -> Coroutine[Any, Any, None]:
            come_in_again()
            return make()

        self._coroutine, self._again = make(), again
        self._advance(None)

    def begin_again(self) -> None:
        """The others have gone on without this node: drop the strategy where it stands, and begin where they are."""
        self.abandon()
        self._coroutine = self._again()
        # The gradient at hand is of a model that this node no longer has.
        self._passes = True
        self._advance(None)
        self._flat.push()

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run some other coroutine of the same node to its end, here and now."""
        value, error = None, None
        while True:
            try:
                effect = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            try:
                value, error = self._perform(effect), None
            except Exception as raised:
                value, error = None, raised

    def before_step(self, absent: frozenset[int] = frozenset()) -> None:
        """The user called ``optimizer.step``: give the strategy its gradient, and the optimizer what it made of it.

        ``absent`` are parameters whose gradients belong to another step.
        """
        self._flat.pull()
        if self._passes:
            self._passes = False
            self._flat.set_gradient(None, of_all=self._of_all)
            return
        self._fresh = self._flat.gradient(absent)
        if self._parked is not None and self._parked.what == "next":
            self._advance(True)
        while self._parked is not None and self._parked.what == "gradient" and self._fresh is not None:
            g, self._fresh = self._fresh, None
            self._advance(g)
        parked = self._parked
        if parked is not None:
            self._flat.set_gradient(parked.g if parked.what == "step" else None, of_all=self._of_all)
        self._flat.push()

    @property
    def steps(self) -> bool:
        """Whether the optimizer's step has a gradient to take it with."""
        return self._parked is None or self._parked.g is not None

    def after_step(self) -> None:
        """The optimizer has stepped: let the strategy go on to the next parking place."""
        if self._parked is not None and self._parked.what == "step":
            self._flat.pull(parameters_only=True)
            self._advance(None)
            self._flat.push()

    def finish(self) -> None:
        """The user's loop is over: let the strategy end as it does after its last step."""
        if self._parked is None:
            return
        self._flat.statistics.look_closely()
        self._flat.pull()
        if self._parked.what == "next":
            self._advance(False)
            # It may have come in anew meanwhile, as one that has nothing left to do.
            while self._passes and self._parked is not None:
                self._passes = False
                self._advance(False)
        else:
            # Every node of a synchronous strategy stands at this same place: nothing is left to agree on.
            self._advance(None, LoopEnded())
        self._flat.push()
        if self._parked is not None:
            raise RuntimeError(f"the strategy asks for another {self._parked.what} after the loop has ended")

    @property
    def at_boundary(self) -> bool:
        """Whether the strategy stands between two steps, where a checkpoint is exact."""
        return self._parked is None or self._parked.what == "next"

    def abandon(self) -> None:
        """Drop the strategy where it stands: the user's loop raised."""
        if self._coroutine is not None:
            self._coroutine.close()
            self._parked = None

    def _advance(self, value: Any, error: BaseException | None = None) -> None:
        if self._coroutine is None:
            return
        modes = torch_modes()
        self._parked = None
        while True:
            try:
                effect = self._coroutine.send(value) if error is None else self._coroutine.throw(error)
            except (StopIteration, LoopEnded):
                return
            except LeftOut:
                self.begin_again()
                return
            if torch_modes() != modes:
                value, error = None, await_in_context()
                continue
            if isinstance(effect, Park):
                self._parked = effect
                return
            try:
                value, error = self._perform(effect), None
            except Exception as raised:
                value, error = None, raised
