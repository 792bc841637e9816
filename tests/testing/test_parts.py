"""The laws can fail: each is shown a part that breaks it, and names what is wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from flockstep.codecs import Codec, Raw
from flockstep.codecs.codec import finite, readable
from flockstep.errors import CodecRange
from flockstep.message import Message
from flockstep.testing import LawBroken, check_codec, check_topology
from flockstep.topologies import Graph, Ring, Topology

STEP = 0.25
"""A power of two, so that what a grid of it holds is exact."""


class Dithered:
    """A grid with random rounding: keeps all the laws, and every codec below spoils one thing of it."""

    name: ClassVar[str] = "grid"
    unbiased: ClassVar[bool] = True

    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        finite(self, v)
        places = torch.floor(v.double() / STEP + self.dither(v, rng)).to(torch.int32)
        return Message(places.view(torch.uint8), self.name, tuple(v.shape), v.dtype)

    def dither(self, v: Tensor, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.random(v.numel()))

    def decode(self, message: Message, near: Tensor) -> Tensor:
        readable(self, message, near, nbytes=4 * near.numel())
        return self.read(message.data, message)

    def read(self, data: Tensor, message: Message) -> Tensor:
        return (data.clone().view(torch.int32) * STEP).to(message.dtype)

    def error_bound(self, v: Tensor) -> Tensor | float:
        return STEP


class RoundsButClaimsOtherwise(Dithered):
    def dither(self, v: Tensor, rng: np.random.Generator) -> Tensor:
        return torch.full((v.numel(),), 0.5, dtype=torch.float64)


class LeansUpwards(Dithered):
    def dither(self, v: Tensor, rng: np.random.Generator) -> Tensor:
        return super().dither(v, rng) ** 0.9


class DropsTheLast(Dithered):
    unbiased = False

    def read(self, data: Tensor, message: Message) -> Tensor:
        decoded = super().read(data, message)
        decoded[-1:] = 0
        return decoded


class DecodesNaN(Dithered):
    def read(self, data: Tensor, message: Message) -> Tensor:
        return super().read(data, message) * math.nan


class DecodesToDouble(Dithered):
    def read(self, data: Tensor, message: Message) -> Tensor:
        return super().read(data, message).double()


class PromisesTooMuch(Dithered):
    def error_bound(self, v: Tensor) -> Tensor | float:
        return torch.full_like(v, STEP / 2)


class ReturnsTheReceiversOwn(Dithered):
    def decode(self, message: Message, near: Tensor) -> Tensor:
        near.copy_(super().decode(message, near))
        return near


class RemembersWhatItDecoded(Dithered):
    def __init__(self) -> None:
        self.memory: dict[bytes, Tensor] = {}

    def decode(self, message: Message, near: Tensor) -> Tensor:
        return self.memory.setdefault(message.header() + bytes(message.data.tolist()), super().decode(message, near))


class DrawsItsOwnNumbers(Dithered):
    def dither(self, v: Tensor, rng: np.random.Generator) -> Tensor:
        return torch.rand(v.numel(), dtype=torch.float64)


class ChangesTheVector(Dithered):
    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        message = super().encode(v, rng)
        v.mul_(0.5)
        return message


class LetsNaNThrough(Dithered):
    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        return super().encode(torch.where(v.isnan(), torch.zeros_like(v), v), rng)


class RefusesInItsOwnWay(Dithered):
    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        if not v.isfinite().all():
            raise ValueError("no")
        return super().encode(v, rng)


class CannotCodeNothing(Dithered):
    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        v.abs().max()
        return super().encode(v, rng)


class MarksAsAnother(Dithered):
    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        return dataclasses.replace(super().encode(v, rng), codec="Raw")


class ForgetsTheDtype(Dithered):
    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        return dataclasses.replace(super().encode(v, rng), dtype=torch.bfloat16)


class Understated(Message):
    @property
    def nbytes(self) -> int:
        return super().nbytes // 2


class CountsHalf(Dithered):
    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        m = super().encode(v, rng)
        return Understated(m.data, m.codec, m.shape, m.dtype)


class ReadsAnyCodec(Dithered):
    def decode(self, message: Message, near: Tensor) -> Tensor:
        return super().decode(dataclasses.replace(message, codec=self.name), near)


class ReadsAnyShape(Dithered):
    def decode(self, message: Message, near: Tensor) -> Tensor:
        return super().decode(message, near.new_zeros(message.shape))


class ReadsWhatIsThere(Dithered):
    def decode(self, message: Message, near: Tensor) -> Tensor:
        whole = torch.zeros(4 * near.numel(), dtype=torch.uint8)
        whole[: len(message.data)] = message.data
        return super().decode(dataclasses.replace(message, data=whole), near)


class ReadsTheBeginning(Dithered):
    def decode(self, message: Message, near: Tensor) -> Tensor:
        return super().decode(dataclasses.replace(message, data=message.data[: 4 * near.numel()]), near)


class Aliases(Raw):
    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        finite(self, v)
        return Message(v.reshape(-1).view(torch.uint8), self.name, tuple(v.shape), v.dtype)


class DecodesInPlace(Raw):
    def decode(self, message: Message, near: Tensor) -> Tensor:
        readable(self, message, near, nbytes=near.numel() * message.dtype.itemsize)
        return message.data.view(message.dtype)


@pytest.mark.parametrize(
    ("codec", "sentence"),
    [
        (RoundsButClaimsOtherwise(), "must be unbiased, as it claims: .* off by > 4 standard errors"),
        (LeansUpwards(), "must be unbiased, as it claims"),
        (DropsTheLast(), "must keep within its error_bound: 1 of 1 equal values of torch.float32 do not"),
        (DecodesNaN(), "must keep within its error_bound: 1 of 1"),
        (
            DecodesToDouble(),
            "must decode to the shape and dtype it encoded: 1 normal values of torch.float32",
        ),
        (PromisesTooMuch(), "must keep within its error_bound"),
        (ReturnsTheReceiversOwn(), "decode must give memory of its own"),
        (RemembersWhatItDecoded(), "decode must give memory of its own"),
        (DrawsItsOwnNumbers(), "must give the same bytes for the same state of rng"),
        (ChangesTheVector(), "encode must not change the vector"),
        (LetsNaNThrough(), "must refuse nan at 0 of 1 .* with CodecRange, but it did not"),
        (RefusesInItsOwnWay(), r"must refuse nan .* with CodecRange, but it raised ValueError\('no'\)"),
        (MarksAsAnother(), "must mark its messages 'grid'"),
        (ForgetsTheDtype(), "must give its messages the shape and dtype of the vector"),
        (CountsHalf(), "must count in nbytes the bytes of its data and header"),
        (ReadsAnyCodec(), "must refuse a message of another codec with CodecRange, but it did not"),
        (ReadsAnyShape(), "must refuse a message of another length than the receiver's vector"),
        (ReadsWhatIsThere(), "must refuse overlong data with CodecRange, but it raised RuntimeError"),
        (ReadsTheBeginning(), "must refuse overlong data"),
        (Aliases(), "encode must copy: the message changed with v"),
        (DecodesInPlace(), "decode must give memory of its own"),
    ],
    ids=lambda case: type(case).__name__ if not isinstance(case, str) else "",
)
def test_a_broken_codec_is_caught(codec: Codec, sentence: str) -> None:
    with pytest.raises(LawBroken, match=f"^{type(codec).__name__}[. ]{sentence}"):
        check_codec(codec, sizes=(1, 2, 1000))


def test_a_codec_that_cannot_code_nothing_is_caught() -> None:
    with pytest.raises(LawBroken, match=r"must code 0 normal values of torch.float32, but it raised"):
        check_codec(CannotCodeNothing())


def test_a_codec_that_pads_is_caught_on_truncated_data() -> None:
    class Pads(ReadsWhatIsThere):
        def decode(self, message: Message, near: Tensor) -> Tensor:
            if len(message.data) > 4 * near.numel():
                raise CodecRange("too long")
            return super().decode(message, near)

    with pytest.raises(LawBroken, match="Pads must refuse truncated data"):
        check_codec(Pads(), sizes=(3,))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.cases(check=1, test=4)
def test_an_unbiased_codec_is_not_accused(seed: int) -> None:
    check_codec(Dithered(), sizes=(0, 1, 2, 300), dtypes=(torch.float32,), seed=seed)


def test_a_codec_that_says_it_rounds_may_round() -> None:
    class Rounds(RoundsButClaimsOtherwise):
        unbiased = False

    check_codec(Rounds(), sizes=(0, 1, 2, 300))


def test_the_receivers_vector_lies_at_the_distance_asked_for() -> None:
    seen: list[float] = []

    class Looks(Dithered):
        def decode(self, message: Message, near: Tensor) -> Tensor:
            decoded = super().decode(message, near)
            seen.append(float((near - decoded).abs().max()))
            return decoded

    check_codec(Looks(), sizes=(100,), distance=1000.0)
    assert max(seen) > 1000


def test_a_broken_law_is_an_assertion_with_its_cause() -> None:
    with pytest.raises(AssertionError) as caught:
        check_codec(CannotCodeNothing(), sizes=(0,))
    assert isinstance(caught.value.__cause__, RuntimeError)


class Changed:
    """A ring whose answers a function changes."""

    def __init__(
        self,
        peers: Callable[[int, int, tuple[int, ...]], tuple[int, ...]] | None = None,
        weights: Callable[[int, int, dict[int, float]], dict[int, float]] | None = None,
    ) -> None:
        self.change_peers = peers or (lambda rank, size, right: right)
        self.change_weights = weights or (lambda rank, size, right: right)

    def peers(self, rank: int, size: int, round: int = 0) -> tuple[int, ...]:
        return self.change_peers(rank, size, Ring().peers(rank, size, round))

    def weights(self, rank: int, size: int, round: int = 0) -> dict[int, float]:
        return self.change_weights(rank, size, Ring().weights(rank, size, round))


class Pairs(Graph):
    def neighbours(self, rank: int, size: int) -> set[int]:
        return {rank ^ 1} & set(range(size))


def refuse(*_: object) -> tuple[int, ...]:
    raise ValueError("never")


def stumble(*_: object) -> tuple[int, ...]:
    raise ZeroDivisionError


def sometimes(rank: int, size: int, right: tuple[int, ...]) -> tuple[int, ...]:
    if rank == 1 and size > 2:
        raise ValueError("not for me")
    return right


def forward(rank: int, size: int, right: tuple[int, ...]) -> tuple[int, ...]:
    return right if size < 3 else ((rank + 1) % size,)


def half(rank: int, size: int, right: dict[int, float]) -> dict[int, float]:
    return right if size < 3 else {(rank + 1) % size: 0.5, rank: 0.5}


def moved(rank: int, size: int, right: dict[int, float]) -> dict[int, float]:
    """All of node 1's own share to its first peer: rows stay whole, columns do not."""
    if rank != 1 or size < 3:
        return right
    return {**right, 1: 0.0, 0: right[0] + right[1]}


TOPOLOGIES: list[tuple[Topology, str]] = [
    (Changed(forward, half), "must be symmetric: .* go only one way"),
    (Pairs(), r"must be connected: at size 3 no way leads from 0 to \[2\]"),
    (Changed(lambda r, n, right: (*right, r)), "must not make a node its own peer"),
    (Changed(lambda r, n, right: right[::-1]), "must give peers sorted, each once"),
    (Changed(lambda r, n, right: right + right[-1:]), "must give peers sorted, each once"),
    (Changed(lambda r, n, right: list(right)), "must give peers sorted"),  # type: ignore[arg-type,return-value]
    (Changed(lambda r, n, right: (*right, n)), "must give peers below size"),
    (
        Changed(weights=lambda r, n, w: {p: w[p] for p in w if p != r}),
        "must weigh exactly its peers and itself",
    ),
    (Changed(weights=lambda r, n, w: {**w, r: w[r] - 1.5}), "must not give negative weights"),
    (Changed(weights=lambda r, n, w: {**w, r: math.nan}), "must not give negative weights"),
    (Changed(weights=lambda r, n, w: {**w, r: w[r] + 1e-9}), "weights whose rows sum to 1: .* off by 1e-09"),
    (Changed(weights=moved), "weights whose columns sum to 1: .* off by 0.333"),
    (Changed(refuse, refuse), r"must accept a size: it refused all of \(1, 2, 3"),  # type: ignore[arg-type]
    (Changed(stumble), "must refuse size 1 with ValueError, but it raised ZeroDivisionError"),
    (Changed(sometimes), "must give node 1 peers and weights at size 3, round 0, but it raised ValueError"),
    (Changed(refuse), "weights must refuse node 0 of size 1 with ValueError, but it did not"),
]


@pytest.mark.parametrize(("topology", "sentence"), TOPOLOGIES, ids=[sentence for _, sentence in TOPOLOGIES])
def test_a_broken_topology_is_caught(topology: Topology, sentence: str) -> None:
    with pytest.raises(LawBroken, match=f"^{type(topology).__name__}.*{sentence}"):
        check_topology(topology)


def test_a_topology_that_takes_any_rank_is_caught() -> None:
    class Careless:
        def peers(self, rank: int, size: int, round: int = 0) -> tuple[int, ...]:
            return Ring().peers(rank % size, size)

        def weights(self, rank: int, size: int, round: int = 0) -> dict[int, float]:
            return Ring().weights(rank % size, size)

    with pytest.raises(LawBroken, match=r"Careless.peers must refuse node -1 of size 1 with ValueError"):
        check_topology(Careless())


def test_a_topology_that_changes_its_mind_is_caught() -> None:
    calls = 0

    def fickle(rank: int, size: int, right: tuple[int, ...]) -> tuple[int, ...]:
        nonlocal calls
        calls += 1
        return right if size < 3 or calls % 2 else right[:1]

    with pytest.raises(LawBroken, match=r"must give the same peers again|must weigh exactly"):
        check_topology(Changed(fickle))


class OneAtATime:
    """A hypercube, one dimension per round: connected only over several rounds."""

    def peers(self, rank: int, size: int, round: int = 0) -> tuple[int, ...]:
        dimensions = size.bit_length() - 1
        if not 0 <= rank < size or size != 1 << dimensions:
            raise ValueError("a hypercube has a power of two of nodes")
        return (rank ^ (1 << round % dimensions),) if dimensions else ()

    def weights(self, rank: int, size: int, round: int = 0) -> dict[int, float]:
        peers = self.peers(rank, size, round)
        return dict.fromkeys((rank, *peers), 1 / (1 + len(peers)))


def test_rounds_may_differ_as_long_as_they_connect_in_time() -> None:
    check_topology(OneAtATime(), rounds=4)
    with pytest.raises(LawBroken, match=r"must be connected: at size 16 .* \[8, 9, 10, 11, 12, 13, 14, 15\]"):
        check_topology(OneAtATime(), sizes=(16,), rounds=3)
