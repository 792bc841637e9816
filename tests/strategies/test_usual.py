"""A cap that follows how long steps usually are."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from oracles import Usual

import flockstep as fs
from flockstep.clips import UsualCap
from flockstep.workloads.convex import Quadratics

SGD = partial(torch.optim.SGD, lr=0.1)


def usual_of(dimensions=()):
    """Of a node that is nothing but its model."""

    class Bare:
        params = torch.ones(*dimensions, 3, dtype=torch.float64)

        def keep(self, name, tensor):
            return tensor

        def count(self, name, amount):
            assert (name, amount) == ("clipped", 0)

    return UsualCap(Bare())


def lengths(count, seed=0):
    rng = np.random.default_rng(seed)
    found = rng.lognormal(sigma=0.5, size=count)
    found[::17] = 0.0
    found[40:44] *= 1e6
    found[80:] *= 30
    return found


@pytest.mark.parametrize("begins", [0, 1])
def test_it_is_the_mean_of_what_was_let_through(begins):
    usual, oracle = usual_of(), Usual()
    for length in lengths(200)[begins:]:
        assert float(usual.cap(torch.tensor(length))) == pytest.approx(oracle(length), rel=1e-12)


def test_rows_of_a_matrix_have_caps_of_their_own():
    together, alone = usual_of((2,)), [usual_of(), usual_of()]
    for pair in zip(lengths(100, seed=1), lengths(100, seed=2), strict=True):
        caps = together.cap(torch.tensor(pair)[:, None])
        expected = [float(one.cap(torch.tensor(length))) for one, length in zip(alone, pair, strict=True)]
        assert caps.squeeze(-1).tolist() == pytest.approx(expected, rel=1e-12)


def test_what_is_not_finite_is_no_length():
    usual, spoilt = usual_of(), usual_of()
    for k, length in enumerate(torch.from_numpy(lengths(60))):
        if k % 3 == 0:
            spoilt.cap(torch.tensor([torch.nan, torch.inf][k % 2], dtype=torch.float64))
        assert torch.equal(usual.cap(length), spoilt.cap(length))


def test_an_explosion_is_stopped_and_growth_is_followed():
    usual = usual_of()
    for _ in range(100):
        usual.cap(torch.tensor(1.0, dtype=torch.float64))
    caps = [float(usual.cap(torch.tensor(1e9, dtype=torch.float64))) for _ in range(500)]
    assert caps[0] == pytest.approx(1.5)
    assert all(later <= 1.00251 * earlier for earlier, later in pairwise(caps))
    assert caps[-1] > 3 * caps[0]


@dataclass(frozen=True)
class Exploding(Quadratics):
    """Every twentieth gradient or so is ten thousand times too long."""

    def gradient(self, x, rng):
        g = super().gradient(x, rng)
        return g * 1e4 if rng.random() < 0.05 else g


@pytest.mark.parametrize("size", [1, 2, 5])
def test_without_a_gamma_exploding_gradients_are_cut(size):
    strategy = fs.CELGC(period=4)
    trace = fs.simulate(strategy, Exploding(dim=5), nodes=size, steps=100, optimizer=SGD)
    calm = fs.simulate(strategy, Quadratics(dim=5), nodes=size, steps=100, optimizer=SGD)
    wild = fs.simulate(fs.LocalSGD(period=4), Exploding(dim=5), nodes=size, steps=100, optimizer=SGD)
    assert all(node.counts["clipped"] >= 1 for node in trace.nodes)
    assert trace.rows[-1].loss < 2 * calm.rows[-1].loss
    assert wild.rows[-1].loss > 100 * trace.rows[-1].loss


@pytest.mark.parametrize("rate", [1e-3, 1.0, 100.0])
def test_without_a_gamma_the_cap_goes_with_the_learning_rate(rate):
    """A problem a thousand times as flat, with a rate a thousand times as high, is the same problem."""
    problem = Quadratics(dim=5, noise=2.0, dtype=torch.float64)

    @dataclass(frozen=True)
    class Flat:
        start, loss = staticmethod(problem.start), staticmethod(problem.loss)

        def gradient(self, x, rng):
            return problem.gradient(x, rng) / rate

        def shard(self, rank, size):
            return self

    def models(workload, lr):
        sgd = partial(torch.optim.SGD, lr=lr)
        return fs.simulate(fs.CELGC(period=4), workload, nodes=1, steps=60, optimizer=sgd).models

    torch.testing.assert_close(models(Flat(), 0.1 * rate)[0], models(problem.shard(0, 1), 0.1)[0])


@pytest.mark.parametrize("strategy", [fs.CELGC(period=4), fs.Episode(period=4)], ids=repr)
def test_nobody_is_told_of_a_gamma_they_did_not_choose(strategy, caplog):
    trace = fs.simulate(strategy, Quadratics(dim=5, noise=0.0), nodes=2, steps=120, optimizer=SGD)
    assert trace.nodes[0].counts["clipped"] == 0
    assert not caplog.records
