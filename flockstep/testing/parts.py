"""What every topology promises, as checks that a broken one does not pass; and how laws of parts are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from flockstep.topologies import Topology

T = TypeVar("T")


class LawBroken(AssertionError):
    """A part does not do what parts of its kind promise; the message says which promise."""


def hold(kept: bool, sentence: str) -> None:
    """LawBroken, in words, unless a promise was kept."""
    if not kept:
        raise LawBroken(sentence)


def must(action: Callable[[], T], sentence: str) -> T:
    """What an action gives; LawBroken where it raises."""
    try:
        return action()
    except Exception as error:
        raise LawBroken(f"{sentence}, but it raised {error!r}") from error


def must_refuse(action: Callable[[], object], kind: type[Exception], sentence: str) -> None:
    """LawBroken unless an action raises this kind of error."""
    try:
        action()
    except kind:
        return
    except Exception as error:
        raise LawBroken(f"{sentence} with {kind.__name__}, but it raised {error!r}") from error
    raise LawBroken(f"{sentence} with {kind.__name__}, but it did not")


def check_topology(
    topology: Topology, sizes: Sequence[int] = (1, 2, 3, 4, 5, 7, 8, 12, 16, 27), *, rounds: int = 1
) -> None:
    """Raise LawBroken unless a topology keeps its laws, for every size it does not refuse.

    Peers are sorted, below size, and mutual; weights are for a node's peers and itself, not negative, and rows and
    columns sum to 1; every call gives the same answer; the graph is connected. A size that it does not take is refused
    with ValueError on every node.

    Args:
        topology: The topology to check.
        sizes: Numbers of nodes to try.
        rounds: Rounds after which all nodes must be connected; more than 1 for a topology that changes from round to
            round.

    Example:
        check_topology(MyTopology(), sizes=(4, 8, 16))
    """
    name = type(topology).__name__
    accepted = [size for size in sizes if _accepts(topology, size)]
    hold(bool(accepted), f"{name} must accept a size: it refused all of {tuple(sizes)}")
    for size in accepted:
        joined = np.eye(size, dtype=bool)
        for round in range(rounds):
            joined |= _check_round(topology, size, round)
        reached = joined[0]
        for _ in range(size):
            reached = joined[reached].any(axis=0)
        missing = np.flatnonzero(~reached).tolist()
        hold(not missing, f"{name} must be connected: at size {size} no way leads from 0 to {missing}")


def _accepts(topology: Topology, size: int) -> bool:
    """Whether the topology takes this size; one that does not must say so to every node."""
    name = type(topology).__name__
    try:
        topology.peers(0, size)
        accepted, refused = True, [-1, size]
    except ValueError:
        accepted, refused = False, list(range(size))
    except Exception as error:
        raise LawBroken(f"{name} must refuse size {size} with ValueError, but it raised {error!r}") from error
    for rank in refused:
        for verb in (topology.peers, topology.weights):
            sentence = f"{name}.{verb.__name__} must refuse node {rank} of size {size}"
            must_refuse(partial(verb, rank, size), ValueError, sentence)
    return accepted


def _check_round(topology: Topology, size: int, round: int) -> npt.NDArray[np.bool_]:
    """The laws of one round; gives who is joined to whom."""
    name, where = type(topology).__name__, f"at size {size}, round {round}"
    joined, matrix = np.zeros((size, size), dtype=bool), np.zeros((size, size))
    for rank in range(size):
        due = f"{name} must give node {rank} peers and weights {where}"
        peers = must(partial(topology.peers, rank, size, round), due)
        weights = must(partial(topology.weights, rank, size, round), due)
        said = f"node {rank} {where} has {peers!r}, {weights!r}"
        hold(rank not in peers, f"{name} must not make a node its own peer: {said}")
        hold(peers == tuple(sorted(set(peers))), f"{name} must give peers sorted, each once: {said}")
        hold(all(0 <= peer < size for peer in peers), f"{name} must give peers below size: {said}")
        hold(peers == topology.peers(rank, size, round), f"{name} must give the same peers again: {said}")
        hold({rank, *peers} == set(weights), f"{name} must weigh exactly its peers and itself: {said}")
        hold(all(w >= 0 for w in weights.values()), f"{name} must not give negative weights: {said}")
        joined[rank, list(peers)] = True
        matrix[rank, list(weights)] = list(weights.values())
    lonely = np.argwhere(joined & ~joined.T).tolist()
    hold(not lonely, f"{name} must be symmetric: {where} edges {lonely[:3]} go only one way")
    for sums, which in ((matrix.sum(axis=1), "rows"), (matrix.sum(axis=0), "columns")):
        off = float(np.abs(sums - 1).max())
        hold(off <= 1e-12, f"{name} must have weights whose {which} sum to 1: {where} off by {off:.3g}")
    return joined
