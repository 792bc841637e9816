"""What every codec and every topology promises, as checks that a broken one does not pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flockstep.errors import CodecRange
from flockstep.message import HEADER_BYTES, Message
from flockstep.parts.codecs.codec import Codec
from flockstep.parts.topologies import Topology

T = TypeVar("T")


class LawBroken(AssertionError):
    """A part does not do what parts of its kind promise; the message says which promise."""


def check_codec(
    codec: Codec,
    sizes: Sequence[int] = (0, 1, 2, 7, 1000, 4096, 4099),
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.float64),
    seed: int = 0,
    *,
    distance: float = 0.01,
) -> None:
    """Raise LawBroken unless the codec keeps the laws below, for vectors of these sizes and dtypes.

    The receiver's own vector lies about ``distance`` from the coded one in each coordinate.
    """
    laws = (_describes, _bounded, _copies_in, _copies_out, _reads_its_own, _refuses_nan, _unbiased)
    for dtype in dtypes:
        for size in sizes:
            rng = np.random.default_rng([seed, size])
            for kind, v in _vectors(size, rng):
                near = torch.from_numpy(v + distance * rng.standard_normal(size)).to(dtype)
                what = f"{size} {kind} values of {dtype}"
                case = _Case(codec, type(codec).__name__, what, torch.from_numpy(v).to(dtype), near, seed)
                for law in laws:
                    law(case)


def _vectors(size: int, rng: np.random.Generator) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
    yield "normal", rng.standard_normal(size)
    yield "zero", np.zeros(size)
    yield "equal", np.full(size, -0.7)
    yield "uneven", rng.standard_normal(size) * 10.0 ** rng.uniform(-6, 1, size)


@dataclass(frozen=True)
class _Case:
    codec: Codec
    name: str
    what: str
    vector: Tensor
    near: Tensor
    seed: int

    def encode(self, v: Tensor | None = None, rng: np.random.Generator | None = None) -> Message:
        vector, rng = self.vector.clone() if v is None else v, rng or np.random.default_rng(self.seed)
        action = partial(self.codec.encode, vector, rng)
        return _must(action, f"{self.name} must code {self.what}")

    def decode(self, message: Message, near: Tensor | None = None) -> Tensor:
        action = partial(self.codec.decode, message, self.near.clone() if near is None else near)
        return _must(action, f"{self.name} must decode {self.what}")

    def bound(self) -> Tensor:
        return torch.as_tensor(self.codec.error_bound(self.vector), dtype=torch.double).expand_as(self.vector)


def _hold(kept: bool, sentence: str) -> None:
    if not kept:
        raise LawBroken(sentence)


def _must(action: Callable[[], T], sentence: str) -> T:
    try:
        return action()
    except Exception as error:
        raise LawBroken(f"{sentence}, but it raised {error!r}") from error


def _must_refuse(action: Callable[[], object], kind: type[Exception], sentence: str) -> None:
    try:
        action()
    except kind:
        return
    except Exception as error:
        raise LawBroken(f"{sentence} with {kind.__name__}, but it raised {error!r}") from error
    raise LawBroken(f"{sentence} with {kind.__name__}, but it did not")


def _describes(case: _Case) -> None:
    message, v = case.encode(), case.vector
    _hold(message.codec == case.codec.name, f"{case.name} must mark its messages {case.codec.name!r}")
    counted = message.nbytes == HEADER_BYTES + len(message.data)
    _hold(counted, f"{case.name} must count in nbytes the bytes of its data and header")
    said = message.shape == tuple(v.shape) and message.dtype == v.dtype
    _hold(said, f"{case.name} must give its messages the shape and dtype of the vector: {case.what}")
    same = torch.equal(message.data, case.encode().data)
    _hold(same, f"{case.name} must give the same bytes for the same state of rng: {case.what}")


def _bounded(case: _Case) -> None:
    decoded, v = case.decode(case.encode()), case.vector
    alike = decoded.shape == v.shape and decoded.dtype == v.dtype
    _hold(alike, f"{case.name} must decode to the shape and dtype it encoded: {case.what}")
    beyond = (decoded.double() - v.double()).abs() - case.bound()
    count = int((~(beyond <= 0)).sum())  # not (beyond > 0): a NaN must count
    _hold(not count, f"{case.name} must keep within its error_bound: {count} of {case.what} do not")


def _copies_in(case: _Case) -> None:
    v = case.vector.clone()
    message = case.encode(v)
    _hold(torch.equal(v, case.vector), f"{case.name}.encode must not change the vector: {case.what}")
    before = message.data.clone()
    v += 1
    _hold(torch.equal(message.data, before), f"{case.name}.encode must copy: the message changed with v")


def _copies_out(case: _Case) -> None:
    message, near = case.encode(), case.near.clone()
    before = message.data.clone()
    first, second = case.decode(message, near), case.decode(message, near)
    _hold(torch.equal(first, second), f"{case.name}.decode must give the same for the same message")
    first += 1
    shared = first.numel() > 0 and torch.equal(first, second)
    kept = torch.equal(message.data, before) and torch.equal(near, case.near)
    _hold(kept and not shared, f"{case.name}.decode must give memory of its own: {case.what}")


def _reads_its_own(case: _Case) -> None:
    message, size = case.encode(), case.vector.numel()

    def refuse(changed: Message, near: Tensor, what: str) -> None:
        _must_refuse(partial(case.codec.decode, changed, near), CodecRange, f"{case.name} must refuse {what}")

    refuse(replace(message, codec="another"), case.near, "a message of another codec")
    longer = replace(message, data=torch.nn.functional.pad(message.data, (0, 1)))
    refuse(longer, case.near, "overlong data")
    refuse(message, case.near.new_zeros(size + 1), "a message of another length than the receiver's vector")
    if len(message.data):
        refuse(replace(message, data=message.data[:-1]), case.near, "truncated data")


def _refuses_nan(case: _Case) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        for place in {0, case.vector.numel() - 1} if case.vector.numel() else ():
            v = case.vector.clone()
            v[place] = bad
            sentence = f"{case.name} must refuse {bad} at {place} of {case.what}"
            _must_refuse(partial(case.codec.encode, v, np.random.default_rng(0)), CodecRange, sentence)


def _unbiased(case: _Case) -> None:
    claimed, rng = case.codec.unbiased and case.vector.numel() > 0, np.random.default_rng(case.seed)
    # Of hundreds of tests some fail by chance, but not again with fresh draws.
    kept = not claimed or any(_seems_unbiased(case, rng, draws) for draws in (128, 512))
    _hold(kept, f"{case.name} must be unbiased, as it claims: {case.what} are off by > 4 standard errors")


def _seems_unbiased(case: _Case, rng: np.random.Generator, draws: int) -> bool:
    v = case.vector.double()
    errors = torch.stack([case.decode(case.encode(rng=rng)).double() - v for _ in range(draws)])
    # The first half finds out where the codec errs; the second, independent of it, whether that is chance.
    finding, testing = errors.chunk(2)
    for direction in (torch.ones_like(v), v.sign(), finding.mean(0)):
        along = testing @ direction
        chance = 4 * float(along.std()) / math.sqrt(len(testing))
        # An error too rare to be among the draws, and the rounding of the dtype itself, are no bias.
        chance += 10 * float((direction.abs() * case.bound()).max()) / len(testing)
        chance += torch.finfo(case.vector.dtype).eps * float(direction.abs() @ v.abs())
        if abs(float(along.mean())) > chance:
            return False
    return True


def check_topology(
    topology: Topology, sizes: Sequence[int] = (1, 2, 3, 4, 5, 7, 8, 12, 16, 27), *, rounds: int = 1
) -> None:
    """Raise LawBroken unless the topology keeps the laws below, for every size it does not refuse.

    A topology that changes from round to round must have connected all nodes after ``rounds`` of them.
    """
    name = type(topology).__name__
    accepted = [size for size in sizes if _accepts(topology, size)]
    _hold(bool(accepted), f"{name} must accept a size: it refused all of {tuple(sizes)}")
    for size in accepted:
        joined = np.eye(size, dtype=bool)
        for round in range(rounds):
            joined |= _check_round(topology, size, round)
        reached = joined[0]
        for _ in range(size):
            reached = joined[reached].any(axis=0)
        missing = np.flatnonzero(~reached).tolist()
        _hold(not missing, f"{name} must be connected: at size {size} no way leads from 0 to {missing}")


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
            _must_refuse(partial(verb, rank, size), ValueError, sentence)
    return accepted


def _check_round(topology: Topology, size: int, round: int) -> npt.NDArray[np.bool_]:
    """The laws of one round; gives who is joined to whom."""
    name, where = type(topology).__name__, f"at size {size}, round {round}"
    joined, matrix = np.zeros((size, size), dtype=bool), np.zeros((size, size))
    for rank in range(size):
        due = f"{name} must give node {rank} peers and weights {where}"
        peers = _must(partial(topology.peers, rank, size, round), due)
        weights = _must(partial(topology.weights, rank, size, round), due)
        said = f"node {rank} {where} has {peers!r}, {weights!r}"
        _hold(rank not in peers, f"{name} must not make a node its own peer: {said}")
        _hold(peers == tuple(sorted(set(peers))), f"{name} must give peers sorted, each once: {said}")
        _hold(all(0 <= peer < size for peer in peers), f"{name} must give peers below size: {said}")
        _hold(peers == topology.peers(rank, size, round), f"{name} must give the same peers again: {said}")
        _hold({rank, *peers} == set(weights), f"{name} must weigh exactly its peers and itself: {said}")
        _hold(all(w >= 0 for w in weights.values()), f"{name} must not give negative weights: {said}")
        joined[rank, list(peers)] = True
        matrix[rank, list(weights)] = list(weights.values())
    lonely = np.argwhere(joined & ~joined.T).tolist()
    _hold(not lonely, f"{name} must be symmetric: {where} edges {lonely[:3]} go only one way")
    for sums, which in ((matrix.sum(axis=1), "rows"), (matrix.sum(axis=0), "columns")):
        off = float(np.abs(sums - 1).max())
        _hold(off <= 1e-12, f"{name} must have weights whose {which} sum to 1: {where} off by {off:.3g}")
    return joined
