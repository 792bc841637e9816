"""All nodes of a run at once: every vector has a row per node, and one call does the work of all.

A program may be run so when it is *row-wise*: the same on every node, so that it never asks for its rank, and made of
operations on single coordinates and of ``vector.norm``, which measures rows. Strategies and parts say so themselves,
each class for itself, with ``row_wise = True``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields, is_dataclass

from torch import Tensor

from flockstep.node import Node


class Flock(Node):
    """A node that stands for all of them."""

    @abstractmethod
    async def mix(self, v: Tensor, rows: Sequence[dict[int, float]]) -> Tensor:
        """In each row i the sum of ``rows[i][j]`` times row j: what neighbours do by sending to each other."""


def not_row_wise(thing: object) -> str | None:
    """The first part of a strategy, or itself, that is not row-wise; None if all are."""
    # Of the class itself: a subclass may do something else.
    if not vars(type(thing)).get("row_wise", False):
        return type(thing).__name__
    if not is_dataclass(thing):
        return None
    parts = (getattr(thing, field.name) for field in fields(thing))
    return next((found for part in parts if not _plain(part) and (found := not_row_wise(part))), None)


def _plain(part: object) -> bool:
    """A number, a word, a function of the step, or a topology, which is pure."""
    is_function = callable(part) and hasattr(part, "__code__")
    return isinstance(part, int | float | str | None) or is_function or hasattr(part, "weights")
