"""QSGD's quantiser: few bits, right on average, and the same bytes from every engine."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.codecs.qsgd import on_torch
from flockstep.codecs.qsgd.levels import Plan
from flockstep.testing import check_codec
from flockstep.workloads.convex import Quadratics

ALL_BITS = range(2, 17)
SIZES = (0, 1, 2, 7, 8, 4095, 4096, 4097, 10_001)


def vector(count, dtype=torch.float32):
    """Of all sizes, some zeros among them."""
    rng = np.random.default_rng([7, count])
    x = rng.standard_normal(count) * 10.0 ** rng.uniform(-6, 1, count)
    return torch.from_numpy(np.where(rng.random(count) < 0.1, 0.0, x)).to(dtype)


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("bits", [2, 9, *(pytest.param(bits, marks=pytest.mark.slow) for bits in (3, 8))])
@pytest.mark.slow
def test_the_laws_of_codecs(bits):
    check_codec(fs.codecs.Stochastic(bits=bits))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bits", ALL_BITS)
def test_numba_comes_to_the_bytes_of_torch(bits, dtype):
    one, other = (fs.codecs.Stochastic(bits=bits, engine=engine) for engine in ("torch", "numba"))
    for count in SIZES:
        v = vector(count, dtype)
        message, same = (codec.encode(v, np.random.default_rng(5)) for codec in (one, other))
        assert torch.equal(message.data, same.data)
        assert torch.equal(one.decode(message, v), other.decode(message, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bits", ALL_BITS)
def test_the_error_is_below_one_level(bits, dtype):
    codec = fs.codecs.Stochastic(bits=bits)
    for scale in (1e-44, 1e-37, 1e-30, 1.0, 1e36):
        v = vector(5000, dtype) * scale
        decoded = codec.decode(codec.encode(v, np.random.default_rng(0)), v)
        assert ((decoded.double() - v.double()).abs() <= codec.error_bound(v)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [0.3, -0.7, 0.001])
@pytest.mark.parametrize("bits", ALL_BITS)
def test_it_is_right_on_average(bits, value, dtype):
    draws = torch.full((10_003,), value, dtype=dtype)
    draws[::4096] = 1.0  # the largest of its block, and no draw
    codec = fs.codecs.Stochastic(bits=bits)
    decoded = codec.decode(codec.encode(draws, np.random.default_rng(2)), draws)
    errors = (decoded.double() - draws.double())[draws != 1.0]
    assert len(errors) == 10_000
    # What rounding the product to the dtype makes of every draw is no matter of chance.
    rounding = 2 * torch.finfo(torch.float32).eps * abs(value)
    assert abs(float(errors.mean())) <= 3 * float(errors.std()) / 100 + rounding


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_the_largest_and_zero_are_exact(bits):
    v = torch.tensor([2.0, 0.0, -2.0])
    codec = fs.codecs.Stochastic(bits=bits)
    assert torch.equal(codec.decode(codec.encode(v, np.random.default_rng(0)), v), v)


def test_it_is_as_short_as_it_should_be():
    v = torch.randn(100_000)
    assert fs.codecs.Stochastic(bits=8).encode(v, np.random.default_rng(0)).nbytes / v.nbytes < 0.26


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bits": 1}, r"Stochastic\.bits must be at least 2, got 1"),
        ({"bits": 17}, r"Stochastic\.bits must be at most 16, got 17"),
        ({"engine": "abacus"}, r"Stochastic\.engine must be one of"),
    ],
)
def test_bad_arguments(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fs.codecs.Stochastic(**options)


def test_the_engine_is_known_and_one_that_cannot_run_is_refused():
    v = torch.zeros(3)
    assert fs.codecs.Stochastic().runs_on(v) == "numba"
    assert fs.codecs.Stochastic(engine="torch").runs_on(v) == "torch"
    with pytest.raises(ValueError, match="the engine triton cannot run here"):
        fs.codecs.Stochastic(engine="triton").encode(v, np.random.default_rng(0))


@pytest.mark.parametrize("engine", ["torch", "numba"])
def test_a_scale_that_float32_cannot_hold_is_refused(engine):
    v = torch.tensor([1.0, -1e300], dtype=torch.float64)
    with pytest.raises(fs.CodecRange, match=r"cannot code the largest value, 1e\+300"):
        fs.codecs.Stochastic(engine=engine).encode(v, np.random.default_rng(0))


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_message_with_a_scale_that_no_vector_has_is_refused(scale):
    v = torch.randn(5)
    message = fs.codecs.Stochastic().encode(v, np.random.default_rng(0))
    data = torch.cat([torch.tensor([scale]).view(torch.uint8), message.data[4:]])
    with pytest.raises(fs.CodecRange, match="scales that no vector has"):
        fs.codecs.Stochastic().decode(dataclasses.replace(message, data=data), v)


def test_a_message_can_lie_anywhere_in_a_buffer():
    v, codec = torch.randn(5000, dtype=torch.float64), fs.codecs.Stochastic(bits=5)
    message = codec.encode(v, np.random.default_rng(0))
    odd = dataclasses.replace(message, data=torch.cat([torch.zeros(3, dtype=torch.uint8), message.data])[3:])
    assert torch.equal(codec.decode(odd, v), codec.decode(message, v))


def test_a_mean_in_few_bits():
    """As the codec of an average, it brings local SGD nearly where the exact mean does."""
    losses = {}
    for average in (fs.averages.Exact(), fs.averages.Coded(codec=fs.codecs.Stochastic(bits=8))):
        strategy = fs.LocalSGD(period=4, average=average)
        sgd = partial(torch.optim.SGD, lr=0.1)
        losses[average] = fs.simulate(strategy, Quadratics(dim=200), nodes=4, steps=80, optimizer=sgd).loss
    exact, coded = losses.values()
    assert coded == pytest.approx(exact, rel=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("bits", ALL_BITS)
def test_triton_comes_to_the_bytes_of_torch(bits):
    from flockstep.codecs.qsgd import on_triton

    for count in SIZES:
        for scale in (1e-44, 1e-30, 1.0, 1e36):
            v, plan = vector(count) * scale, Plan(count, bits)
            here, there = (
                (
                    torch.zeros(plan.blocks, device=device),
                    torch.zeros(plan.code_bytes, dtype=torch.uint8, device=device),
                )
                for device in ("cpu", "cuda")
            )
            assert on_torch.encode(v, 12345, plan, *here)
            assert on_triton.encode(v.cuda(), 12345, plan, *there)
            assert torch.equal(here[0], there[0].cpu())
            assert torch.equal(here[1], there[1].cpu())
            outs = torch.empty_like(v), torch.empty_like(v).cuda()
            on_torch.decode(*here, plan, outs[0])
            on_triton.decode(*there, plan, outs[1])
            assert torch.equal(outs[0], outs[1].cpu())
    spoiled = torch.full((5,), float("nan"), device="cuda")
    with pytest.raises(fs.CodecRange, match="not finite"):
        fs.codecs.Stochastic(bits=bits).encode(spoiled, np.random.default_rng(0))
    assert fs.codecs.Stochastic(bits=bits).runs_on(spoiled) == "triton"
