"""One of QSGD's engines, by name."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from torch import Tensor

from flockstep.parts.codecs.qsgd.plan import Plan


class Engine(Protocol):
    """One way to compute the levels; all come to the same integers."""

    def encode(self, v: Tensor, seed: int, plan: Plan, scales: Tensor, codes: Tensor) -> bool:
        """Write a vector's scales and codes; False if a value is not finite, or its scale not in float32."""

    def decode(self, scales: Tensor, codes: Tensor, plan: Plan, out: Tensor) -> None:
        """Write the vector into ``out``."""


def load(name: str) -> Engine:
    """An engine, imported when it is first needed: two of them take a while."""
    engine: Engine = import_module(f"flockstep.parts.codecs.qsgd.on_{name}")
    return engine
