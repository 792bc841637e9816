"""What was not joined must not train what was, nor train beside it in silence.

A layer unfrozen later, a parameter added to the optimizer, an optimizer that was not joined: each is refused by name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.island import local
from flockstep.backends.loop.serialization import now_and_then

_JOIN_AGAIN = "\n  leave the `with` and join again, so that it becomes part of what is averaged"
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Outsiders:
    """Looks after the parameters outside the vector, and the buffers that cannot be averaged."""

    def __init__(self, model: nn.Module, flat: FlatModel, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._model, self._flat, self._optimizers = model, flat, optimizers
        self._inside = {id(p) for p in model.parameters() if flat.holds(p)}
        self._looks = 0
        self.remember()

    def remember(self) -> None:
        """From here on, nothing of it may move."""
        self._marks = {name: _mark(tensor) for name, tensor in self._watched().items()}
        self._sums = {name: _fingerprint(tensor) for name, tensor in self._watched().items()}

    def check(self) -> None:
        """Before a step: RuntimeError if it moves, or something has moved, what no other node will hear of."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None and id(parameter) not in self._inside:
                        self._refuse(parameter)
        self._looks += 1
        closely = now_and_then(self._looks)
        if closely:
            self._check_model()
        for name, tensor in self._watched().items():
            mark = _mark(tensor)
            if closely or mark != self._marks[name]:
                self._marks[name] = mark
                if _fingerprint(tensor) != self._sums[name]:
                    self._refuse_moved(name)

    def _check_model(self) -> None:
        there = {id(parameter) for parameter in self._model.parameters()}
        if not self._inside <= there:
            name = next(name for name, parameter in self._flat.parameters if id(parameter) not in there)
            raise RuntimeError(f"parameter {name} is no longer part of the model" + _JOIN_AGAIN)

    def _watched(self) -> dict[str, Tensor]:
        constants = {buffer.name: buffer.now for buffer in self._flat.statistics.constants}
        return {**self._flat.frozen, **constants}

    def _refuse(self, parameter: Tensor) -> None:
        name = next((name for name, other in self._model.named_parameters() if other is parameter), None)
        if name in self._flat.frozen:
            raise RuntimeError(
                f"parameter {name} did not train when the loop joined, and has a gradient now" + _JOIN_AGAIN
            )
        which = f"parameter {name}" if name else f"a parameter of shape {tuple(parameter.shape)}"
        raise RuntimeError(f"{which} has come to the optimizer since the loop joined" + _JOIN_AGAIN)

    def _refuse_moved(self, name: str) -> None:
        if name in self._flat.frozen:
            raise RuntimeError(
                f"parameter {name} does not train (requires_grad=False) and has changed since the loop joined: "
                "nodes would come apart in it\n  keep what follows the model, a teacher or an EMA, outside of it"
            )
        raise RuntimeError(
            f"buffer {name} held values that are not finite when the loop joined, and has changed since: "
            "it is a constant to us, and not averaged\n  let it begin with finite numbers"
        )


def _mark(tensor: Tensor) -> tuple[int, int]:
    return tensor._version, local(tensor).data_ptr()


def _fingerprint(tensor: Tensor) -> int:
    """The sum of a tensor's bits, taken as whole numbers."""
    if not local(tensor).numel():
        return 0
    bits = local(tensor).contiguous()
    bits = torch.view_as_real(bits) if bits.is_complex() else bits
    return int(bits.reshape(-1).view(_WORDS[bits.element_size()]).sum(dtype=torch.int64))


_joined: set[int] = set()
_held: dict[int, str] = {}
"""Names of the parameters of all joined loops of this process."""
_hooks: list[Any] = []

STEP = next(
    code
    for code in torch.optim.Optimizer.profile_hook_step.__code__.co_consts
    if getattr(code, "co_name", "") == "wrapper"
)
"""The code that torch runs around every step."""


@contextmanager
def refused(optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[tuple[str, Tensor]]) -> Iterator[None]:
    """Inside, these optimizers and no others may step these parameters."""
    if any(id(optimizer) in _joined for optimizer in optimizers):
        raise ValueError("join.optimizer is in another join already: leave that one first")
    ours = {id(optimizer) for optimizer in optimizers}
    names = {id(parameter): name for name, parameter in parameters}
    _joined.update(ours)
    _held.update(names)
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_look))
    try:
        yield
    finally:
        _joined.difference_update(ours)
        for one in names:
            _held.pop(one, None)
        if not _joined and _hooks:
            _hooks.pop().remove()


def _look(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if id(optimizer) in _joined:
        return
    held = (_held[id(p)] for group in optimizer.param_groups for p in group["params"] if id(p) in _held)
    name = next(held, None)
    # One that is wrapped in another, which was joined, steps on its behalf.
    if name is not None and not any(id(caller) in _joined for caller in steps_under_way()):
        raise RuntimeError(
            f"{type(optimizer).__name__} was not joined, and steps parameter {name}, which was: no strategy would hear "
            "of it\n  give fs.join the optimizer that steps, and make it before"
        )


def steps_under_way() -> Iterator[torch.optim.Optimizer]:
    """Whose steps this code is called from, the innermost first."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is STEP and frame.f_locals.get("self") is not None:
            yield frame.f_locals["self"]
