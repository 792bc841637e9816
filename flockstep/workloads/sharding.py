"""Who trains on what: items dealt to nodes with a stated degree of heterogeneity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep import check

Indices = NDArray[np.int64]

# A fourth word keeps this stream apart from those that draw a node's batches, which have fewer: NumPy fills
# up with zeros, and [seed] would be the stream of the first node's batches.
_STREAM = (0, 0, 2)


def deal(
    items: int, rank: int, size: int, *, heterogeneity: float, seed: int, order: NDArray[Any] | None = None
) -> Indices:
    """The items, by index and ascending, that node ``rank`` of ``size`` gets.

    A random ``heterogeneity`` fraction of the items is sorted by ``order`` (labels, say; None is by position)
    and dealt in contiguous runs; the rest is dealt at random. Every item goes to exactly one node, and no
    node gets more than one item more than another.
    """
    check.whole("deal", "items", items)
    check.fraction("deal", "heterogeneity", heterogeneity)
    check.whole("deal", "seed", seed, at_least=0)
    check_place("deal", rank, size)
    if size > items:
        raise ValueError(f"deal.size must not exceed the {items} items there are to deal, got {size}")
    if order is not None and np.shape(order) != (items,):
        raise ValueError(f"deal.order must have one entry for each of the {items} items, got shape {np.shape(order)}")
    shuffled = np.random.default_rng([seed, *_STREAM]).permutation(items)
    sorted_part, random_part = np.split(shuffled, [round(heterogeneity * items)])
    keys = sorted_part if order is None else np.asarray(order)[sorted_part]
    # Stable, so that items of one label stay in random order.
    sorted_part = sorted_part[np.argsort(keys, kind="stable")]
    # One part's remainder goes to the first nodes and the other's to the last: together they stay even.
    mine = np.concatenate([_run(sorted_part, rank, size), _run(random_part, size - 1 - rank, size)])
    return np.sort(mine)


def check_place(owner: object, rank: int, size: int) -> None:
    """Refuse a rank that is not one of ``size`` nodes."""
    check.whole(owner, "size", size)
    check.whole(owner, "rank", rank, at_least=0)
    if rank >= size:
        name = owner if isinstance(owner, str) else type(owner).__name__
        raise ValueError(f"{name}.rank must be below size {size}, got {rank}")


def _run(items: Indices, rank: int, size: int) -> Indices:
    length, longer = divmod(len(items), size)
    begin = rank * length + min(rank, longer)
    return items[begin : begin + length + (rank < longer)]
