import math

import numpy as np
import pytest
import torch

import flockstep as fs
from experiments.celgc_speedup.runs import CHECK_EVERY, celgc, run
from experiments.celgc_speedup.wells import Wells

torch.set_num_threads(1)


def value(problem, x):
    return float(np.sum(problem.scales * (np.cosh(x) - x**2)))


def test_the_slope_is_that_of_the_wells():
    problem, x = Wells(dim=5), np.array([-2.0, -0.5, 0.0, 1.0, 3.0])
    steps = 1e-6 * np.eye(5)
    expected = [(value(problem, x + h) - value(problem, x - h)) / 2e-6 for h in steps]
    assert np.allclose(problem.slope(torch.tensor(x)), expected, atol=1e-7)
    assert problem.loss(torch.tensor(x)) == pytest.approx(np.linalg.norm(expected), abs=1e-7)


def test_curvature_is_bounded_by_the_slope_and_not_by_a_constant():
    at = np.linspace(-30, 30, 200_001)
    curvature, slope = np.abs(np.cosh(at) - 2), np.abs(np.sinh(at) - 2 * at)
    assert np.all(curvature <= 2.5 + 2 * slope)
    assert curvature.max() > 1e9


def test_the_noise_has_the_stated_length():
    problem, rng = Wells(noise=0.5), np.random.default_rng(0)
    x = torch.ones(problem.dim, dtype=torch.float64)
    squares = [np.sum((problem.gradient(x, rng).numpy() - problem.slope(x)) ** 2) for _ in range(400)]
    assert math.sqrt(np.mean(squares)) == pytest.approx(problem.sigma, rel=0.03)
    assert np.allclose(problem.scales[[0, -1]], [0.5, 1.0])


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.cases(check=1)
@pytest.mark.slow
def test_a_run_ends_at_the_first_small_gradient(nodes):
    problem = Wells(dim=4, noise=0.3)
    found = run(celgc(problem, 4, 0.02), problem, nodes=nodes, rate=0.02, target=0.25, limit=10_000, seed=0)
    assert found.steps is not None
    assert 0 < found.steps < 10_000
    assert found.steps % CHECK_EVERY == 0
    assert 0 < found.clipped < 1
    assert (found.bytes_sent > 0) == (nodes > 1)
    short = found.steps - CHECK_EVERY
    missed = run(celgc(problem, 4, 0.02), problem, nodes=nodes, rate=0.02, target=0.25, limit=short, seed=0)
    assert missed.steps is None
    assert not missed.diverged


def test_every_other_coordinate_starts_up_the_wall():
    start = Wells(dim=5, wall=3.0, ridge=0.5).start()
    assert start.tolist() == [3.0, 0.5, 3.0, 0.5, 3.0]


def test_without_a_clip_the_walls_throw_a_run_out():
    problem = Wells(dim=4)
    lost = run(fs.LocalSGD(period=1), problem, nodes=2, rate=0.1, target=0.25, limit=100, seed=0)
    assert lost.diverged
    assert lost.steps is None
