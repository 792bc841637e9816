"""A law of the contract, as a program that any backend can run.

Its nodes write what they saw into ``node.params``; ``verify`` reads it from the trace, ``verify_error`` judges the
error a run ended with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flockstep.codecs.raw import Raw
from flockstep.errors import FlockstepError
from flockstep.message import Message
from flockstep.node import Node
from flockstep.testing.parts import LawBroken
from flockstep.trace import Trace

Run = Callable[..., Trace]
"""``run(strategy, workload, nodes=, steps=, timeout=) -> Trace``: a backend, or what looks like one."""


@dataclass(frozen=True)
class Page:
    """A workload with nothing to learn: eight numbers for programs to write on; gradients are the rank plus one."""

    rank: int = 0

    def start(self) -> Tensor:
        """Zeros."""
        return torch.zeros(8, dtype=torch.float64)

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """One draw of the data stream, in every place."""
        return torch.full((8,), float(rng.random()), dtype=torch.float64)

    def loss(self, x: Tensor) -> float:
        """Zero."""
        return 0.0

    def shard(self, rank: int, size: int) -> Page:
        """The same, knowing whose it is."""
        return Page(rank)


class Law:
    """One promise of the contract of nodes: a program that every node runs, and what must have come of it.

    A subclass has ``run`` and ``verify``, or ``verify_error`` where the run must fail. Its nodes write what they saw
    into ``node.params``, eight numbers.

    Attributes:
        nodes: How many nodes run it.
        steps: Steps of each node.
        timeout: How long any wait may last, in seconds.

    Example:
        for law in BACKEND_LAWS:
            law.check(fs.simulate)
    """

    nodes: ClassVar[int] = 3
    steps: ClassVar[int] = 1
    timeout: ClassVar[float] = 20.0

    async def run(self, node: Node) -> None:
        """What every node does."""
        raise NotImplementedError

    def verify(self, seen: list[list[float]]) -> None:
        """Check what nodes 0, 1, ... wrote; the run must have ended well."""

    def verify_error(self, error: FlockstepError) -> None:
        """Check how the run ended, where it must not have ended well."""
        raise error

    def check(self, run: Run) -> None:
        """Run the program on a backend and judge the outcome."""
        try:
            trace = run(self, Page(), nodes=self.nodes, steps=self.steps, timeout=self.timeout)
        except FlockstepError as error:
            self.verify_error(error)
        else:
            self.verify([trace.models[rank].tolist() for rank in range(self.nodes)])

    def expect(self, held: bool, what: str) -> None:
        """Raise LawBroken, in words, unless something held."""
        if not held:
            raise LawBroken(f"{type(self).__name__}: {what}")


def note(*values: float) -> Message:
    """A message of a few numbers."""
    return Raw().encode(torch.tensor(values, dtype=torch.float64), np.random.default_rng(0))


def read(message: Message) -> list[float]:
    """The numbers of such a message."""
    values: list[float] = Raw().decode(message, torch.empty(message.shape, dtype=message.dtype)).tolist()
    return values
