"""Ways to bring bytes from one process to another, all with one face, so that rows differ in nothing else.

A request is 1 kB. Its first byte says what is wanted: the body, or the request itself back.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

BODY_BYTES = 100 * 2**20
REQUEST_BYTES = 1024
ECHO, PULL = 0, 1
SERVER, CLIENT = 0, 1
"""Ranks, where a way has such a thing."""


@dataclass(frozen=True)
class Place:
    """Where one of the two processes is, and the folder in which both find keys and each other."""

    host: str
    folder: Path


class Caller(Protocol):
    """The asking side of a way, connected."""

    def pull(self) -> Tensor:
        """The body, in memory that the next pull may use again."""

    def echo(self, request: Tensor) -> Tensor:
        """A request, there and back."""

    def close(self) -> None:
        """Leave nothing open."""


@dataclass(frozen=True)
class Way:
    """One row."""

    serve: Callable[[Place, Tensor], str]
    """Answer in threads of this process from now on; the line that leads a caller there."""
    connect: Callable[[Place, str], Caller]
    against: str
    """The row it is measured against."""
    lacks: str = ""
    """What is missing here to run it."""


def body() -> Tensor:
    """The same 100 MB in every process; random, as coded parameters are to whoever carries them."""
    piece = torch.randint(256, (2**20,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return piece.repeat(BODY_BYTES // piece.numel())


def request(kind: int) -> Tensor:
    """1 kB that asks for something."""
    return torch.full((REQUEST_BYTES,), kind, dtype=torch.uint8)


def quartiles(values: list[float]) -> list[float]:
    """Three of them; of a single value, that one."""
    return statistics.quantiles(values, n=4) if len(values) > 1 else 3 * values


def missing(module: str, package: str) -> str:
    """What to say of a package that is not here; empty if it is."""
    return "" if importlib.util.find_spec(module) else f"not installed: {package}"
