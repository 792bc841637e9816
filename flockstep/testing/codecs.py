"""What every codec promises, as checks that a broken one does not pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flockstep.codecs.codec import Codec
from flockstep.errors import CodecRange
from flockstep.message import HEADER_BYTES, Message
from flockstep.testing.parts import hold, must, must_refuse

_GARBAGE = (b"\xff", b"\x7f", b"\x80\x7f", b"\x00\x7c", b"\x00\x00\x80\xff", b"\x00" * 6 + b"\xf0\x7f")
"""What is NaN, or infinite, or very large in one format or another: bf16, fp16, float32, float64."""


def check_codec(
    codec: Codec,
    sizes: Sequence[int] = (0, 1, 2, 7, 1000, 4096, 4099),
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.float64),
    seed: int = 0,
    *,
    distance: float = 0.01,
) -> None:
    """Raise LawBroken unless a codec keeps its laws, for vectors of some sizes and dtypes.

    What is decoded lies within ``error_bound``, on average at the vector itself where the codec says that it is
    unbiased; messages have memory of their own and describe what they hold; vectors that are not finite, and messages
    of other codecs or shapes, are refused with CodecRange; garbled ones are refused, or decode to finite values.

    Args:
        codec: The codec to check.
        sizes: Numbers of coordinates to try.
        dtypes: Dtypes to try.
        seed: Seed of the vectors, and of the codec's random numbers.
        distance: How far the receiver's own vector lies from the coded one, about, in each coordinate.

    Example:
        check_codec(MyCodec())
    """
    laws = (_describes, _bounded, _copies_in, _copies_out, _reads_its_own, _refuses_nan, _stays_finite, _unbiased)
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
        return must(action, f"{self.name} must code {self.what}")

    def decode(self, message: Message, near: Tensor | None = None) -> Tensor:
        action = partial(self.codec.decode, message, self.near.clone() if near is None else near)
        return must(action, f"{self.name} must decode {self.what}")

    def bound(self) -> Tensor:
        return torch.as_tensor(self.codec.error_bound(self.vector), dtype=torch.double).expand_as(self.vector)


def _describes(case: _Case) -> None:
    message, v = case.encode(), case.vector
    hold(message.codec == case.codec.name, f"{case.name} must mark its messages {case.codec.name!r}")
    counted = message.nbytes == HEADER_BYTES + len(message.data)
    hold(counted, f"{case.name} must count in nbytes the bytes of its data and header")
    said = message.shape == tuple(v.shape) and message.dtype == v.dtype
    hold(said, f"{case.name} must give its messages the shape and dtype of the vector: {case.what}")
    same = torch.equal(message.data, case.encode().data)
    hold(same, f"{case.name} must give the same bytes for the same state of rng: {case.what}")


def _bounded(case: _Case) -> None:
    decoded, v = case.decode(case.encode()), case.vector
    alike = decoded.shape == v.shape and decoded.dtype == v.dtype
    hold(alike, f"{case.name} must decode to the shape and dtype it encoded: {case.what}")
    beyond = (decoded.double() - v.double()).abs() - case.bound()
    count = int((~(beyond <= 0)).sum())  # not (beyond > 0): a NaN must count
    hold(not count, f"{case.name} must keep within its error_bound: {count} of {case.what} do not")


def _copies_in(case: _Case) -> None:
    v = case.vector.clone()
    message = case.encode(v)
    hold(torch.equal(v, case.vector), f"{case.name}.encode must not change the vector: {case.what}")
    before = message.data.clone()
    v += 1
    hold(torch.equal(message.data, before), f"{case.name}.encode must copy: the message changed with v")


def _copies_out(case: _Case) -> None:
    message, near = case.encode(), case.near.clone()
    before = message.data.clone()
    first, second = case.decode(message, near), case.decode(message, near)
    hold(torch.equal(first, second), f"{case.name}.decode must give the same for the same message")
    first += 1
    shared = first.numel() > 0 and torch.equal(first, second)
    kept = torch.equal(message.data, before) and torch.equal(near, case.near)
    hold(kept and not shared, f"{case.name}.decode must give memory of its own: {case.what}")


def _reads_its_own(case: _Case) -> None:
    message, size = case.encode(), case.vector.numel()

    def refuse(changed: Message, near: Tensor, what: str) -> None:
        must_refuse(partial(case.codec.decode, changed, near), CodecRange, f"{case.name} must refuse {what}")

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
            must_refuse(partial(case.codec.encode, v, np.random.default_rng(0)), CodecRange, sentence)


def _stays_finite(case: _Case) -> None:
    message = case.encode()
    size = len(message.data)
    for pattern in _GARBAGE:
        garbled = np.resize(np.frombuffer(pattern, np.uint8), size)
        # All of the data, or one half of it: heads and tails may mean different things.
        for begin, end in ((0, size), (0, size // 2), (size // 2, size)):
            data = message.data.clone()
            data[begin:end] = torch.from_numpy(garbled[begin:end])
            try:
                decoded = case.codec.decode(replace(message, data=data), case.near.clone())
            except CodecRange:
                continue
            kept = bool(decoded.isfinite().all())
            hold(kept, f"{case.name}.decode must refuse garbled data, or give finite values: {case.what}")


def _unbiased(case: _Case) -> None:
    claimed, rng = case.codec.unbiased and case.vector.numel() > 0, np.random.default_rng(case.seed)
    # Of hundreds of tests some fail by chance, but not again with fresh draws.
    kept = not claimed or any(_seems_unbiased(case, rng, draws) for draws in (128, 512))
    hold(kept, f"{case.name} must be unbiased, as it claims: {case.what} are off by > 4 standard errors")


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
