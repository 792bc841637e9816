"""One step of the strategy is one step of each optimizer: the two official hooks, closures, and an eye on GradScaler.

The first optimizer to step brings the strategy the gradients of all; the last lets it go on. Where optimizers take
turns, as in a GAN, whose second gradient is computed after the first step, a strategy that changes gradients or looks
at them has nothing to look at yet: it is refused, and one whose nodes step with their own gradients works.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler

from flockstep.backends.loop.grad_scaler import is_unscaled, watching
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.loop.outsiders import refused, steps_under_way
from flockstep.backends.loop.several_optimizers import name_of
from flockstep.vector import is_finite

Marks = tuple[tuple[weakref.ref[Tensor], int] | None, ...]


class Stepping:
    """The optimizers of one joined loop, and where they are in the step of the strategy."""

    def __init__(
        self,
        node: JoinedNode,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        own_gradients: bool,
        begin: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self._node, self._optimizers, self._own_gradients = node, optimizers, own_gradients
        self._begin, self._end = begin, end
        self._stepped: set[int] = set()
        self._begun = False
        self._marks: dict[int, Marks] = {}
        """What each optimizer's gradients were when the strategy had seen them, or after its own step."""
        self._called: set[int] = set()
        self._unscaled_early: set[int] = set()

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Inside, every step of the optimizers is (part of) a step of the strategy."""
        # Whoever compiles an optimizer's step compiles what is around it, and not this.
        aside: Any = torch.compiler.disable
        with ExitStack() as stack:
            stack.enter_context(refused(self._optimizers, self._node.flat.parameters))
            for which, optimizer in enumerate(self._optimizers):
                stack.callback(optimizer.register_step_pre_hook(aside(self._before_hook(which))).remove)
                stack.callback(optimizer.register_step_post_hook(aside(self._after_hook(which))).remove)
                stack.enter_context(watching(optimizer, self._scaled(which)))
            yield
            if self._begun:
                missing = next(w for w in range(len(self._optimizers)) if w not in self._stepped)
                raise RuntimeError(
                    f"the loop ended before {name_of(self._optimizers, missing)} had stepped: "
                    "a step of the strategy is one step of each optimizer"
                )

    # Hooks -----------------------------------------------------------------------------------------------------------

    def _before_hook(self, which: int) -> Callable[..., Any]:
        def hook(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if _is_inherited(optimizer):
                return None
            self._called.discard(which)
            closure = kwargs.get("closure", args[1] if len(args) > 1 and callable(args[1]) else None)
            if closure is None:
                self._before(which)
                return None
            once = self._once(which, closure)
            if "closure" in kwargs:
                return args, {**kwargs, "closure": once}
            return (args[0], once, *args[2:]), kwargs

        return hook

    def _once(self, which: int, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, with the strategy's part of the step behind it."""

        def once() -> Any:
            if which in self._called:
                raise NotImplementedError(
                    f"{name_of(self._optimizers, which)} calls its closure more than once a step, and computes "
                    "gradients where no hook sees them\n  use an optimizer that needs one gradient a step"
                )
            loss = closure()
            self._called.add(which)
            self._before(which)
            return loss

        return once

    def _after_hook(self, which: int) -> Callable[..., None]:
        def hook(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if _is_inherited(optimizer):
                return
            closure = kwargs.get("closure", args[1] if len(args) > 1 and callable(args[1]) else None)
            if closure is not None and which not in self._called:
                raise NotImplementedError(f"{name_of(self._optimizers, which)} never called the closure it was given")
            self._after(which)

        return hook

    # Steps -----------------------------------------------------------------------------------------------------------

    def _before(self, which: int) -> None:
        if which in self._stepped:
            missing = next(w for w in range(len(self._optimizers)) if w not in self._stepped)
            raise RuntimeError(
                f"{name_of(self._optimizers, which)} steps again before {name_of(self._optimizers, missing)} has: "
                "a step of the strategy is one step of each"
            )
        if self._begun:
            self._take_turn(which)
            return
        self._begun = True
        self._begin()
        self._node.driver.before_step(self._stale(but=which))
        optimizer: Any = self._optimizers[which]
        if self._node.driver.steps and getattr(optimizer, "found_inf", None) is not None:
            # A scaler told it to do nothing. Now it has a gradient that is finite: perhaps of other nodes.
            optimizer.found_inf = torch.zeros_like(optimizer.found_inf)
        if len(self._optimizers) > 1:
            self._marks = {other: _marks(self._parameters(other)) for other in range(len(self._optimizers))}
        self._node.start_computing()

    def _after(self, which: int) -> None:
        self._stepped.add(which)
        if len(self._optimizers) > 1:
            self._marks[which] = _marks(self._parameters(which))
        if len(self._stepped) < len(self._optimizers):
            return
        self._stepped.clear()
        self._unscaled_early.clear()
        self._begun = False
        self._node.stop_computing()
        self._node.driver.after_step()
        self._end()
        self._node.start_computing()

    def _stale(self, *, but: int) -> frozenset[int]:
        """Parameters of other optimizers whose gradients have been stepped with already, and are not new."""
        old = [w for w in self._marks if w != but and _same(self._marks[w], self._parameters(w))]
        return frozenset(id(parameter) for w in old for parameter in self._parameters(w))

    def _take_turn(self, which: int) -> None:
        """A further optimizer's step: with what the strategy made of its gradients, unless they are new."""
        parameters = self._parameters(which)
        if _same(self._marks[which], parameters):
            return
        name = name_of(self._optimizers, which)
        if not self._own_gradients:
            raise RuntimeError(
                f"the gradients of {name} were computed after another optimizer had stepped, and this strategy works "
                "on the gradients of all: it cannot wait for them\n"
                "  call every backward() before the first step(), or use a strategy without a clip, such as LocalSGD"
            )
        if which in self._unscaled_early:
            raise RuntimeError(
                f"the gradients of {name} were zeros when another optimizer stepped, and are new now: a GradScaler "
                "cannot tell\n  call its zero_grad(set_to_none=True)"
            )
        if self._node.island is not None:
            raise NotImplementedError(
                f"the gradients of {name} were computed after another optimizer had stepped: not in an island yet\n"
                "  call every backward() before the first step()"
            )
        if not all(is_finite(p.grad) for p in parameters if p.grad is not None):
            self._node.count("not finite")
            for parameter in parameters:
                parameter.grad = None

    def _parameters(self, which: int) -> list[Tensor]:
        return [parameter for group in self._optimizers[which].param_groups for parameter in group["params"]]

    # GradScaler ------------------------------------------------------------------------------------------------------

    def _scaled(self, which: int) -> Callable[[GradScaler, Callable[[], Any]], Any]:
        optimizer = self._optimizers[which]

        def scaled(scaler: GradScaler, step: Callable[[], Any]) -> Any:
            if self._node.island is not None:
                raise NotImplementedError(
                    "a GradScaler in an island is not supported: each member would see overflows of its own part\n"
                    "  train in bfloat16, with MixedPrecisionPolicy(param_dtype=torch.bfloat16) or autocast"
                )
            self._node.scaled = True
            self._unscale(scaler, which)
            fired = False

            def fire(*_: Any) -> None:
                nonlocal fired
                fired = True

            seen = optimizer.register_step_pre_hook(fire)
            try:
                result = step()
                if not fired:
                    # The scaler refused. It is still a step of the strategy, or exchanges would meet the wrong ones;
                    # and where gradients are averaged, what the others brought is to be stepped with here, too.
                    optimizer.step()
            finally:
                seen.remove()
            return result

        return scaled

    def _unscale(self, scaler: GradScaler, which: int) -> None:
        """Before the strategy sees them: this optimizer's gradients, and those of others that are there already."""
        stale = self._stale(but=which) if not self._begun else frozenset()
        for other, optimizer in enumerate(self._optimizers):
            fresh = [p for p in self._parameters(other) if p.grad is not None and id(p) not in stale]
            if not is_unscaled(scaler, optimizer) and (other == which or (fresh and not self._begun)):
                scaler.unscale_(optimizer)
                if other != which:
                    self._unscaled_early.add(other)


def _is_inherited(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this step was called by another of the same optimizer, as ``super().step()`` is: torch hooks both."""
    if "step" not in vars(type(optimizer)):
        return False
    return sum(other is optimizer for other in steps_under_way()) > 1


def _marks(parameters: Sequence[Tensor]) -> Marks:
    """Enough of gradients to tell whether they are others than before; by reference, since addresses are used again."""
    return tuple(None if p.grad is None else (weakref.ref(p.grad), p.grad._version) for p in parameters)


def _same(marks: Marks, parameters: Sequence[Tensor]) -> bool:
    """Whether gradients are those that were marked."""
    if len(marks) != len(parameters):
        return False
    for mark, parameter in zip(marks, parameters, strict=True):
        if mark is None or parameter.grad is None:
            if mark is not None or parameter.grad is not None:
                return False
        elif mark[0]() is not parameter.grad or mark[1] != parameter.grad._version:
            return False
    return True
