"""What a GPU does again and again is recorded, and then asked for as a whole.

To launch the kernels of a small network takes longer than to run them, and one thread launches for all workers. So a
function of tensors is done plainly at first; from the third time on, for inputs of the same shapes, its kernels are
launched together (``torch.cuda.CUDAGraph``). They are the same kernels and give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Given = Tensor | None
Work = Callable[..., tuple[Any, ...]]
"""A function of tensors, or None in place of one; so are its results."""

_PLAINLY = 2
"""Times that a function is done plainly: libraries choose and allocate when they are first asked."""
_KINDS = 4
"""Shapes of inputs that are recorded; whatever else comes is done plainly."""


class Recorded:
    """``work`` reads what it is given, and tensors that stay where they are; what it gives is good until it is asked
    again. A generator that it draws from goes on with every replay."""

    def __init__(self, work: Work, generator: torch.Generator | None = None) -> None:
        self._work, self._generator = work, generator
        self._asked: dict[tuple[object, ...], int] = {}
        self._tapes: dict[tuple[object, ...], Tape] = {}

    def __call__(self, *given: Given) -> tuple[Any, ...]:
        """What ``work`` gives."""
        kind = tuple(None if each is None else (each.shape, each.dtype) for each in given)
        if kind not in self._tapes:
            self._asked[kind] = self._asked.get(kind, 0) + 1
            if self._asked[kind] <= _PLAINLY or len(self._tapes) == _KINDS:
                return self._work(*given)
            self._tapes[kind] = Tape(self._work, given, self._generator)
        return self._tapes[kind].play(given)


class Tape:
    """The kernels of a function for inputs of certain shapes, which are copied to where they read."""

    def __init__(self, work: Work, given: Sequence[Given], generator: torch.Generator | None) -> None:
        self._inputs = [None if each is None else each.clone() for each in given]
        self._graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self._graph.register_generator_state(generator)
        with torch.cuda.graph(self._graph):
            self._outputs = work(*self._inputs)

    def play(self, given: Sequence[Given]) -> tuple[Any, ...]:
        """Launch them."""
        for here, there in zip(self._inputs, given, strict=True):
            if here is not None and there is not None:
                here.copy_(there)
        self._graph.replay()
        return self._outputs
