import copy
import multiprocessing
import pickle

import cloudpickle
import numpy as np
import pytest
import torch

from flockstep.workloads.convex import Logistic, Quadratics
from flockstep.workloads.noises import AlphaStable, Gaussian, LogTail, StudentT
from flockstep.workloads.noisy import Noisy
from flockstep.workloads.rotated import RotatedQuadratics
from flockstep.workloads.workload import Workload, tensors_of

torch.set_num_threads(1)

RNG = np.random.default_rng(7)
DATA = RNG.standard_normal((40, 5)), np.where(RNG.random(40) < 0.3, 1.0, -1.0)


def logistic(dtype=torch.float64):
    return Logistic(data=DATA, batch=4, dtype=dtype)


class Layered:
    """A workload that knows its tensors, and is all in one dtype."""

    def __init__(self, dtype=torch.float32):
        self.dtype = dtype

    def start(self):
        return torch.ones(5, dtype=self.dtype)

    def gradient(self, x, rng):
        return x.clone()

    def loss(self, x):
        return float(x.sum())

    def shard(self, rank, size):
        return self

    def tensors(self, v):
        return [v[:2], v[2:]]


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("noise", [StudentT(df=1.5), LogTail(), AlphaStable(alpha=1.3)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_added_after_the_workloads_own_draws(size, noise, dtype):
    for inner in (Quadratics(dim=6, dtype=dtype), logistic(dtype)):
        noisy = Noisy(workload=inner, noise=noise, scale=0.5)
        assert isinstance(noisy, Workload)
        for rank in range(size):
            x = inner.start() + 0.3
            before, mine, oracle = x.clone(), np.random.default_rng(rank), np.random.default_rng(rank)
            for _ in range(3):
                g = noisy.shard(rank, size).gradient(x, mine)
                expected = inner.shard(rank, size).gradient(x, oracle).double()
                expected += 0.5 * torch.from_numpy(noise.draw(oracle, 1, len(x))[0])
                assert g.dtype == dtype
                assert torch.allclose(g.double(), expected, rtol=1e-6 if dtype == torch.float32 else 1e-13)
            assert torch.equal(x, before)


def test_the_default_is_students_t_at_scale_one():
    inner, x = RotatedQuadratics(), RotatedQuadratics().start()
    away = Noisy(workload=inner).gradient(x, np.random.default_rng(1)) - inner.gradient(x, np.random.default_rng(1))
    assert np.allclose(away.numpy(), np.random.default_rng(1).standard_t(1.5, 10))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_gradient_keeps_its_dtype_even_where_the_noise_does_not_fit(dtype):
    noisy = Noisy(workload=Layered(dtype), noise=AlphaStable(alpha=0.2), scale=1e30)
    assert noisy.gradient(noisy.start(), np.random.default_rng(0)).dtype == dtype


def test_scales_differ_in_nothing_else():
    x = logistic().start()
    rngs = np.random.default_rng(4), np.random.default_rng(4)
    for scale, rng in zip((0.0, 2.0), rngs, strict=True):
        Noisy(workload=logistic(), scale=scale).gradient(x, rng)
    assert rngs[0].bit_generator.state == rngs[1].bit_generator.state
    exact = Noisy(workload=logistic(), scale=0).gradient(x, np.random.default_rng(4))
    assert torch.equal(exact, logistic().gradient(x, np.random.default_rng(4)))


def test_what_the_workload_has_it_has_too():
    inner = logistic()
    noisy, x = Noisy(workload=inner), inner.start() + 0.1
    assert noisy.loss(x) == noisy.shard(1, 3).loss(x) == inner.loss(x)
    assert noisy.accuracy(x) == inner.accuracy(x)
    assert torch.equal(noisy.start(), inner.start())
    shard = Noisy(workload=Quadratics(dim=3)).shard(1, 4)
    assert torch.equal(shard.optimum(), Quadratics(dim=3).shard(1, 4).optimum())
    assert (shard.rank, shard.size) == (1, 4)
    assert not hasattr(noisy, "optimum")
    with pytest.raises(AttributeError, match="'Logistic' object has no attribute 'nonsense'"):
        _ = noisy.nonsense
    with pytest.raises(AttributeError, match="'Noisy' object has no attribute '_rows'"):
        _ = noisy._rows


def test_tensors_are_there_where_the_workload_knows_them():
    v = torch.arange(5.0)
    assert [t.tolist() for t in tensors_of(Noisy(workload=Layered()), v)] == [[0, 1], [2, 3, 4]]
    assert tensors_of(Noisy(workload=Quadratics(dim=5)), v)[0] is v
    assert not hasattr(Noisy(workload=Quadratics()), "tensors")


def through_pickle(thing):
    return pickle.loads(pickle.dumps(thing))


def through_cloudpickle(thing):
    return pickle.loads(cloudpickle.dumps(thing))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, through_pickle, through_cloudpickle])
@pytest.mark.parametrize("make", [lambda: Quadratics(dim=5), logistic, RotatedQuadratics, Layered])
def test_copies_do_the_same(copied, make):
    noisy = Noisy(workload=make(), noise=LogTail(), scale=0.1).shard(0, 2)
    twin, x = copied(noisy), noisy.start()
    assert twin is not noisy
    assert torch.equal(*(n.gradient(x, np.random.default_rng(8)) for n in (noisy, twin)))
    assert twin.loss(x) == noisy.loss(x)
    again = copied(Noisy(workload=noisy, noise=Gaussian()))
    assert again.workload.scale == 0.1


def test_half_made_it_asks_nobody():
    with pytest.raises(AttributeError, match="'Noisy' object has no attribute 'loss_of_memory'"):
        _ = object.__new__(Noisy).loss_of_memory


def in_a_child(noisy, connection):
    connection.send(noisy.gradient(noisy.start(), np.random.default_rng(8)).tolist())


@pytest.mark.slow
def test_it_travels_to_a_process():
    context = multiprocessing.get_context("spawn")
    noisy = Noisy(workload=logistic()).shard(1, 3)
    ours, theirs = context.Pipe()
    child = context.Process(target=in_a_child, args=(noisy, theirs))
    child.start()
    assert ours.poll(120)
    assert ours.recv() == noisy.gradient(noisy.start(), np.random.default_rng(8)).tolist()
    child.join()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Noisy(workload=Quadratics(), scale=-1), ValueError, r"Noisy\.scale must not be negative, got -1"),
        (
            lambda: Noisy(workload=Quadratics),
            TypeError,
            r"Noisy\.workload must be a workload.*\n.*parentheses",
        ),
        (lambda: Noisy(workload=3), TypeError, r"Noisy\.workload must be a workload, got 3"),
        (lambda: Noisy(workload=Quadratics(), noise=1.5), TypeError, r"Noisy\.noise must be a noise such as"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()
