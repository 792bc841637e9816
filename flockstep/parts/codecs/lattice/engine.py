"""Which engine codes a vector: by where it lies and what is installed. Never changed without being said."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from flockstep.parts.codecs.lattice.plan import Plan

NAMES = ("numba", "triton", "torch")


class Engine(Protocol):
    """One way to compute the lattice; all come to the same integers."""

    def encode(self, v: Tensor, exponents: Tensor, seed: int, plan: Plan, data: Tensor) -> bool:
        """Write a vector's message into ``data``; False if a value is not finite."""

    def decode(self, data: Tensor, near: Tensor, plan: Plan, out: Tensor) -> tuple[Tensor, Tensor]:
        """Write the vector into ``out``; per block, whether it checks, and the largest distance from ``near``."""


def choose(wanted: str, device: torch.device, dtype: torch.dtype) -> str:
    """The engine for vectors like this one; ValueError where the wanted one cannot run."""
    able = {
        "numba": device.type == "cpu" and _installed("numba"),
        "triton": device.type == "cuda" and dtype == torch.float32 and _installed("triton"),
        "torch": True,
    }
    if wanted == "auto":
        return next(name for name in NAMES if able[name])
    if not able[wanted]:
        raise ValueError(
            f"the engine {wanted} cannot run here, on {dtype} on {device}\n"
            "  leave Modular.engine at 'auto', or install it where it can"
        )
    return wanted


def load(name: str) -> Engine:
    """An engine, imported when it is first needed: two of them take a while."""
    engine: Engine = import_module(f"flockstep.parts.codecs.lattice.on_{name}")
    return engine


@lru_cache(maxsize=4)
def _installed(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True
