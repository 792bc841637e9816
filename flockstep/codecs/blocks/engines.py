"""Which engine codes a vector: by where it lies and what is installed. Never changed without being said."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

import torch

NAMES = ("numba", "triton", "torch")


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
            "  leave the codec's engine at 'auto', or install it where it can"
        )
    return wanted


def computed(dtype: torch.dtype) -> torch.dtype:
    """The dtype engines compute in: shorter formats than float32 have too few bits for the integers."""
    return dtype if dtype == torch.float64 else torch.float32


@lru_cache(maxsize=4)
def _installed(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True
