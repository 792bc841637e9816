"""Every strategy against a plain NumPy loop in float64: to 1e-12."""

from functools import partial

import numpy as np
import oracles
import pytest
import torch

import flockstep as fs
from flockstep.node import stream
from flockstep.workloads.convex import Quadratics

STEPS, ETA, GAMMA, SEED = 40, 0.2, 0.15, 3
SGD = partial(torch.optim.SGD, lr=ETA)
PROBLEM = Quadratics(dim=6, noise=0.5, dtype=torch.float64)
SIZES = (1, 2, 4, 5)


def gradients_of(size):
    """The nodes' stochastic gradients, from the problem's formula and the nodes' own streams."""
    shards = [PROBLEM.shard(rank, size) for rank in range(size)]
    streams = [stream(SEED, rank, "data") for rank in range(size)]

    def gradient(x, shard, rng):
        return shard.curvature * (x - shard.centre) + 0.5 * rng.standard_normal(6)

    return [partial(gradient, shard=s, rng=r) for s, r in zip(shards, streams, strict=True)]


def check(strategy, size, expected, optimizer=SGD):
    trace = fs.simulate(strategy, PROBLEM, nodes=size, steps=STEPS, optimizer=optimizer, seed=SEED)
    for rank in range(size):
        np.testing.assert_allclose(trace.models[rank].numpy(), expected[rank], rtol=1e-12, atol=1e-12)
    return trace


@pytest.mark.parametrize("size", SIZES)
def test_data_parallel(size):
    check(fs.DataParallel(), size, oracles.data_parallel(np.zeros(6), gradients_of(size), STEPS, ETA))


@pytest.mark.parametrize("size", SIZES)
def test_naive_parallel_clip(size):
    expected = oracles.data_parallel(np.zeros(6), gradients_of(size), STEPS, ETA, GAMMA)
    trace = check(fs.DataParallel(clip=fs.clips.ClipStep(gamma=GAMMA)), size, expected)
    assert 0 < trace.nodes[0].counts["clipped"] <= STEPS


@pytest.mark.parametrize("period", [1, 2, 7, 40, 100])
@pytest.mark.parametrize("size", SIZES)
def test_local_sgd(size, period):
    check(fs.LocalSGD(period=period), size, oracles.local_sgd(np.zeros(6), gradients_of(size), STEPS, ETA, period))


@pytest.mark.parametrize("gamma", [GAMMA, None])
@pytest.mark.parametrize("period", [1, 2, 7])
@pytest.mark.parametrize("size", SIZES)
def test_celgc(size, period, gamma):
    expected = oracles.local_sgd(np.zeros(6), gradients_of(size), STEPS, ETA, period, gamma or "usual")
    trace = check(fs.CELGC(period=period, gamma=gamma), size, expected)
    assert all(node.counts["clipped"] > 0 for node in trace.nodes if gamma)


@pytest.mark.parametrize("period", [1, 7])
@pytest.mark.parametrize("size", SIZES)
def test_celgc_update_with_momentum(size, period):
    expected = oracles.momentum_update_capped(np.zeros(6), gradients_of(size), STEPS, ETA, period, GAMMA, 0.9)
    heavy_ball = partial(torch.optim.SGD, lr=ETA, momentum=0.9)
    trace = check(fs.CELGCUpdate(period=period, gamma=GAMMA), size, expected, heavy_ball)
    assert all(node.counts["clipped"] > 0 for node in trace.nodes)


@pytest.mark.parametrize("gamma", [0.05, GAMMA, 10.0, None])
@pytest.mark.parametrize("period", [1, 2, 7])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("published", [False, True])
@pytest.mark.cases(check=24, test=32)
def test_episode(size, period, gamma, published):
    expected = oracles.episode(np.zeros(6), gradients_of(size), STEPS, ETA, period, gamma or "usual", published)
    check(fs.Episode(period=period, gamma=gamma, published=published), size, expected)


@pytest.mark.parametrize(("size", "sampled"), [(1, 1), (2, 1), (2, 2), (4, 3), (5, 2), (5, None)])
@pytest.mark.parametrize("gamma", [GAMMA, None])
@pytest.mark.parametrize("period", [1, 7])
@pytest.mark.parametrize("published", [False, True])
@pytest.mark.cases(check=12, test=16)
def test_episode_plus(size, sampled, period, gamma, published):
    strategy = fs.EpisodePlus(period=period, gamma=gamma, sampled=sampled, published=published)
    samples = [strategy.sample(round, size) for round in range(STEPS)]
    assert all(len(sample) == sampled or len(sample) == size for sample in samples)
    cap = gamma or "usual"
    start, gradients = np.zeros(6), gradients_of(size)
    expected, everyone, own = oracles.episode_plus(start, gradients, STEPS, ETA, period, cap, samples, published)
    np.testing.assert_allclose(everyone, np.mean(own, axis=0), rtol=1e-9, atol=1e-12)
    check(strategy, size, expected)
