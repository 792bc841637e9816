"""QSGD's quantiser: few bits, right on average."""

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.testing import check_codec


@pytest.mark.parametrize("bits", [2, 3, 8, 9])
def test_the_laws_of_codecs(bits):
    check_codec(fs.Stochastic(bits=bits))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_it_is_right_on_average(bits):
    v = torch.tensor([0.3, -0.7, 1.0, 0.0, -0.01], dtype=torch.float64)
    rng, codec = np.random.default_rng(0), fs.Stochastic(bits=bits)
    draws = torch.stack([codec.decode(codec.encode(v, rng), v) for _ in range(2000)])
    standard_error = draws.std(0) / 2000**0.5
    assert ((draws.mean(0) - v).abs() <= 4 * standard_error + 1e-6).all()


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_the_largest_and_zero_are_exact(bits):
    v = torch.tensor([2.0, 0.0, -2.0])
    codec = fs.Stochastic(bits=bits)
    assert torch.equal(codec.decode(codec.encode(v, np.random.default_rng(0)), v), v)


def test_sizes_and_bad_arguments():
    v = torch.randn(100_000)
    assert fs.Stochastic(bits=8).encode(v, np.random.default_rng(0)).nbytes / v.nbytes < 0.26
    with pytest.raises(ValueError, match=r"Stochastic\.bits must be at most 16, got 17"):
        fs.Stochastic(bits=17)


def test_a_mean_in_few_bits():
    """As the codec of an average, it brings local SGD nearly where the exact mean does."""
    from functools import partial

    from flockstep.workloads.convex import Quadratics

    losses = {}
    for average in (fs.Exact(), fs.Coded(codec=fs.Stochastic(bits=8))):
        strategy = fs.LocalSGD(period=4, average=average)
        sgd = partial(torch.optim.SGD, lr=0.1)
        losses[average] = fs.simulate(strategy, Quadratics(dim=200), nodes=4, steps=80, optimizer=sgd).loss
    exact, coded = losses.values()
    assert coded == pytest.approx(exact, rel=0.02)
