"""The modular quantiser: the same integers from every engine, right within its range, and never silently wrong."""

import dataclasses

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.codecs.blocks.blocks import BLOCK
from flockstep.codecs.coder import asks_again, coder_for
from flockstep.codecs.lattice import lattice, on_numba, on_torch
from flockstep.codecs.lattice.lattice import Plan, exponents_for
from flockstep.codecs.modular import Modular
from flockstep.testing import check_codec

SIZES = (1, 7, 8, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5)
ALL_BITS = range(3, 17)


def pair(count, reach, dtype=torch.float32, seed=0):
    """A vector, and a receiver's own that lies within ``reach`` of it."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal(count)).to(dtype)
    return x, x + torch.from_numpy(rng.uniform(-reach, reach, count)).to(dtype)


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("bits", [3, 4, 8, 9])
@pytest.mark.slow
def test_the_laws_of_codecs(bits):
    check_codec(Modular(bits=bits))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", ALL_BITS)
def test_numba_comes_to_the_integers_of_torch(bits, dtype):
    for count in SIZES:
        x, y = pair(count, 0.01, dtype)
        plan = Plan(count, bits)
        exponents = exponents_for(torch.full((plan.blocks,), 0.01), bits)
        messages = [torch.zeros(plan.nbytes, dtype=torch.uint8) for _ in range(2)]
        assert on_torch.encode(x, exponents, 12345, plan, messages[0])
        assert on_numba.encode(x, exponents, 12345, plan, messages[1])
        assert torch.equal(*messages)
        outs = [torch.empty_like(x) for _ in range(2)]
        one, other = (e.decode(messages[0], y, plan, out) for e, out in zip((on_torch, on_numba), outs, strict=True))
        assert torch.equal(*outs)
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


@pytest.mark.parametrize("bits", ALL_BITS)
def test_inside_the_range_the_error_is_below_the_scale(bits):
    for reach in (1e-6, 0.01, 3.0):
        x, y = pair(2 * BLOCK + 3, reach)
        codec = Modular(bits=bits, reach=reach)
        message = codec.encode(x, np.random.default_rng(1))
        assert ((codec.decode(message, y) - x).abs() < codec.error_bound(x)).all()


@pytest.mark.parametrize("value", [0.0, 0.3, -1.7, 123.456])
@pytest.mark.parametrize("bits", [3, 8, 16])
def test_it_is_right_on_average(bits, value):
    draws = torch.full((10_000,), value, dtype=torch.float64)
    codec = Modular(bits=bits, reach=0.5)
    errors = codec.decode(codec.encode(draws, np.random.default_rng(2)), draws) - draws
    assert abs(float(errors.mean())) <= 3 * float(errors.std()) / 100 + 1e-12


@pytest.mark.parametrize("bits", ALL_BITS)
def test_out_of_range_is_said_and_never_guessed(bits):
    """A receiver exactly q s away would read its own value back, and both would stay apart for ever."""
    x, _ = pair(BLOCK + 9, 0.0)
    codec = Modular(bits=bits, reach=0.01)
    message = codec.encode(x, np.random.default_rng(0))
    apart = 2.0**bits * float(codec.error_bound(x)[5])
    far = x.clone()
    far[5] += apart
    with pytest.raises(fs.CodecRange, match="cannot decode 1 of 2 blocks"):
        codec.decode(message, far)
    # Errors that cancel in a plain sum do not cancel here.
    far[6] -= apart
    with pytest.raises(fs.CodecRange, match="cannot decode 1 of 2 blocks"):
        codec.decode(message, far)


@pytest.mark.parametrize(("bits", "most"), [(8, 0.27), (4, 0.145), (16, 0.52), (3, 0.115)])
def test_it_is_as_short_as_it_should_be(bits, most):
    v = torch.randn(100_000)
    message = Modular(bits=bits).encode(v, np.random.default_rng(0))
    assert message.nbytes / v.nbytes <= most


def test_short_formats_are_coded_in_float32_and_come_back_as_they_were():
    x = torch.randn(5000).bfloat16()
    codec = Modular(bits=16, reach=0.5)
    decoded = codec.decode(codec.encode(x, np.random.default_rng(0)), x)
    assert decoded.dtype == torch.bfloat16
    torch.testing.assert_close(decoded, x, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bits": 2}, "Modular.bits must be at least 3, got 2"),
        ({"bits": 17}, "Modular.bits must be at most 16, got 17"),
        ({"reach": 0.0}, "Modular.reach must be positive"),
        ({"engine": "abacus"}, "Modular.engine must be one of"),
    ],
)
def test_bad_arguments(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Modular(**options)


def test_the_engine_is_known_and_one_that_cannot_run_is_refused():
    v = torch.zeros(3)
    assert Modular().runs_on(v) == "numba"
    assert Modular(engine="torch").runs_on(v) == "torch"
    with pytest.raises(ValueError, match="the engine triton cannot run here"):
        Modular(engine="triton").runs_on(v)
    assert lattice.choose("auto", torch.device("meta"), torch.float32) == "torch"


class Alone:
    """As much of a node as a coder needs; all of its model trains, unless it is said how much does."""

    def __init__(self, trained=1 << 40):
        self.rng, self.counts, self.kept, self.trained = np.random.default_rng(0), {}, {}, trained

    def keep(self, name, tensor):
        self.kept[name] = tensor
        return tensor

    def count(self, name, amount=1):
        self.counts[name] = self.counts.get(name, 0) + amount


def exchange(one, other, sent, own):
    """What a question, a request for repair if need be, and a reply bring both sides."""
    message = one.write(sent)
    read = other.read(message, own)
    if not isinstance(read, tuple):
        assert asks_again(read)
        message = one.mend(sent, message, read)
        read = other.read(message, own)
    reply = other.reply(own, read)
    back = one.read(reply, sent)
    return read.vector, back.vector, one.own(message, sent), other.own(reply, own)


def test_both_sides_of_an_exchange_read_the_same_two_vectors():
    x, y = pair(2 * BLOCK + 1, 0.2)
    coders = [coder_for(Modular(bits=8), Alone(), x) for _ in range(2)]
    for _ in range(5):
        read, back, own, theirs = exchange(*coders, x, y)  # type: ignore[call-arg]
        assert torch.equal(read, own)
        assert torch.equal(back, theirs)
        y = y + 0.001 * torch.randn(y.shape)


def test_nodes_that_are_locked_apart_come_together_within_one_exchange():
    x, _ = pair(2 * BLOCK, 0.0)
    coders = [coder_for(Modular(bits=8), Alone(), x) for _ in range(2)]
    exchange(*coders, x, x + 0.01)  # type: ignore[call-arg]
    scale = 2.0 ** float(Plan(x.numel(), 8).split(coders[0].write(x).data)[1].max())
    y = x.clone()
    y[: BLOCK // 2] += 256 * scale
    read, back, own, theirs = exchange(*coders, x, y)  # type: ignore[call-arg]
    assert torch.equal(read, own)
    assert torch.equal(back, theirs)
    assert coders[1]._node.counts["blocks out of reach"] == 1  # type: ignore[attr-defined]
    x, y = x + (back - own) / 2, y + (read - theirs) / 2
    assert float((x - y).abs().max()) <= 4 * scale


@pytest.mark.parametrize("trained", [0, 1, BLOCK, 2 * BLOCK + 1])
def test_statistics_behind_what_trains_come_as_they_are(trained):
    """Also where a message has to be mended, and in the reply: however small they are beside the weights."""
    x, y = (torch.cat([part, 1e-9 * torch.rand(5)]) for part in pair(trained, 0.2))
    coders = [coder_for(Modular(bits=8), Alone(trained), x) for _ in range(2)]
    for step in (0.0, 0.001, 100.0):
        y[:trained] += step
        read, back, own, theirs = exchange(*coders, x, y)  # type: ignore[call-arg]
        assert torch.equal(read, own)
        assert torch.equal(back, theirs)
        assert torch.equal(read[trained:], x[trained:])
        assert torch.equal(back[trained:], y[trained:])
    message = coders[0].write(x)
    short = dataclasses.replace(message, data=message.data[:3].clone())
    with pytest.raises(fs.CodecRange, match="too short for 5 statistics"):
        coders[1].read(short, y)


@pytest.mark.parametrize("name", ["numba", "torch"])
def test_a_scale_beyond_all_numbers_is_refused_though_its_checksum_is_right(name):
    codec, near = Modular(bits=8, engine=name), torch.zeros(3)
    message = codec.encode(near, np.random.default_rng(0))
    data = message.data.clone()
    _, exponents, codes = Plan(3, 8).split(data)
    # The point 5 * 2^127: its high part is 0, as that of the zeros was.
    exponents.fill_(127)
    codes.fill_(5)
    with pytest.raises(fs.CodecRange, match="Modular cannot decode 1 of 1 blocks"):
        codec.decode(dataclasses.replace(message, data=data), near)


def test_what_a_mended_message_brings_must_be_finite():
    x, y = pair(BLOCK, 0.0)
    one, other = (coder_for(Modular(bits=8), Alone(), x) for _ in range(2))
    exchange(one, other, x, y + 0.01)
    far = y + 100.0
    message = one.write(x)
    mended = one.mend(x, message, other.read(message, far))
    mended.data[-4:] = torch.tensor([float("inf")]).view(torch.uint8)
    with pytest.raises(fs.CodecRange, match=r"1 value that is not finite: inf at index 4095"):
        other.read(mended, far)


def test_a_coder_by_rounds_learns_when_a_round_is_over_and_remembers_the_furthest_of_it():
    x = torch.zeros(5)
    coder = coder_for(Modular(bits=8), node := Alone(), x, of="model", by_rounds=True)
    seen, peer = node.kept["model: distances seen"], fs.codecs.Raw()
    for distance in (3.0, 0.5, 0.25):
        coder.read(peer.encode(x + distance, node.rng), x)
    assert seen.tolist() == [0.0]
    coder.settle()
    assert seen.tolist() == [3.0]
    coder.settle()
    assert seen.tolist() == [pytest.approx(0.9 * 3.0)]
    with pytest.raises(ValueError, match="Modular knows distances of 5 coordinates, got 6 to send"):
        coder.write(torch.zeros(6))


def test_an_empty_vector():
    codec = Modular()
    empty = torch.empty(0)
    assert codec.decode(codec.encode(empty, np.random.default_rng(0)), empty).numel() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("bits", ALL_BITS)
def test_triton_comes_to_the_integers_of_torch(bits):
    from flockstep.codecs.lattice import on_triton

    for count in SIZES:
        x, y = pair(count, 0.01)
        plan = Plan(count, bits)
        exponents = exponents_for(torch.full((plan.blocks,), 0.01), bits)
        here = torch.zeros(plan.nbytes, dtype=torch.uint8)
        there = here.cuda()
        assert on_torch.encode(x, exponents, 12345, plan, here)
        assert on_triton.encode(x.cuda(), exponents, 12345, plan, there)
        assert torch.equal(here, there.cpu())
        outs = torch.empty_like(x), torch.empty_like(x).cuda()
        one, other = on_torch.decode(here, y, plan, outs[0]), on_triton.decode(there, y.cuda(), plan, outs[1])
        assert torch.equal(outs[0], outs[1].cpu())
        assert torch.equal(one[0], other[0].cpu())
        assert torch.equal(one[1], other[1].cpu())
    spoiled = torch.full((5,), float("nan"), device="cuda")
    with pytest.raises(fs.CodecRange, match="not finite"):
        Modular(bits=bits).encode(spoiled, np.random.default_rng(0))
    assert Modular(bits=bits).runs_on(spoiled) == "triton"
