"""An optimizer that was not joined must not step what was.

One that is made inside the loop, or that another one calls (SAM's base optimizer), takes steps of which no strategy
would ever hear: nodes would drift apart without a word. torch tells of every optimizer's steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

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
