"""One of the lattice's engines, by name."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from torch import Tensor

from flockstep.parts.codecs.blocks.engine import choose
from flockstep.parts.codecs.lattice.plan import Plan

__all__ = ["Engine", "choose", "load"]


class Engine(Protocol):
    """One way to compute the lattice; all come to the same integers."""

    def encode(self, v: Tensor, exponents: Tensor, seed: int, plan: Plan, data: Tensor) -> bool:
        """Write a vector's message into ``data``; False if a value is not finite."""

    def decode(self, data: Tensor, near: Tensor, plan: Plan, out: Tensor) -> tuple[Tensor, Tensor]:
        """Write the vector into ``out``; per block, whether it checks, and the largest distance from ``near``."""


def load(name: str) -> Engine:
    """An engine, imported when it is first needed: two of them take a while."""
    engine: Engine = import_module(f"flockstep.parts.codecs.lattice.on_{name}")
    return engine
