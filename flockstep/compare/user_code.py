"""What a user brings along: ``module:name``, a workload, a function that makes one, or a training function.

A training function is ``train(strategy)`` or ``train(strategy, seed)``: it holds the user's own loop, joins with that
strategy (``with fs.join(model, optimizer, strategy) as node``) and records losses with ``node.log(loss)``; those of
node 0 are the rows.
"""

from __future__ import annotations

import importlib
import inspect
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch

import flockstep as fs

_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_VERBS = ("start", "gradient", "loss", "shard")


@dataclass(frozen=True)
class Loop:
    """A training function of the user's own."""

    function: Callable[..., Any]
    takes_seed: bool

    def program(self, strategy: fs.Strategy, seed: int) -> Program:
        """What every node calls."""
        return Program(self, strategy, seed)


@dataclass(frozen=True)
class Program:
    """A training function with its strategy and its seed, without arguments."""

    loop: Loop
    strategy: fs.Strategy
    seed: int

    def __call__(self) -> Any:
        """Train, from the same random numbers on every node: the function knows its rank by ``fs.rank()``."""
        torch.manual_seed(self.seed)
        np.random.seed(self.seed)
        random.seed(self.seed)
        return self.loop.function(self.strategy, *[self.seed] * self.loop.takes_seed)


def is_place(text: str) -> bool:
    """Whether a workload's text is ``module:name``."""
    return _PLACE.fullmatch(text.strip()) is not None


def load(text: str) -> fs.Workload | Loop:
    """The thing that ``module:name`` names; modules are looked for in this folder first, as ``python -m`` does."""
    module_name, _, name = text.strip().partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"cannot import {module_name!r}: {error}") from error
        raise ValueError(f"there is no module {module_name!r} in {here} or among the installed ones") from error
    if not hasattr(module, name):
        close = get_close_matches(name, dir(module), n=1)
        raise ValueError(f"module {module_name} has no {name!r}" + (f" (did you mean {close[0]}?)" if close else ""))
    return _understood(text, getattr(module, name))


def _understood(text: str, thing: Any) -> fs.Workload | Loop:
    if _is_workload(thing):
        workload: fs.Workload = thing
        return workload
    needed = _needed(thing) if callable(thing) else None
    if needed == []:
        made = thing()
        if _is_workload(made):
            return made  # type: ignore[no-any-return]
        raise ValueError(f"{text} takes no arguments, so it should make a workload, but made {type(made).__name__}")
    if needed in (["strategy"], ["strategy", "seed"]):
        return Loop(thing, takes_seed="seed" in inspect.signature(thing).parameters)
    raise ValueError(
        f"{text} is neither a workload nor a function that makes one, nor a training function\n"
        "  write def train(strategy): or def train(strategy, seed): and join with that strategy"
    )


def _is_workload(thing: Any) -> bool:
    return not isinstance(thing, type) and all(callable(getattr(thing, verb, None)) for verb in _VERBS)


def _needed(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]
