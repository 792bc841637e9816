import pickle

import numpy as np
import pytest
import torch
from torch import nn

from flockstep.workloads.module import ModuleWorkload
from flockstep.workloads.workload import Workload

torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(2))
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 1)
        self.frozen = nn.Parameter(torch.full((1,), 2.0), requires_grad=False)

    def forward(self, inputs):
        return self.last(self.norm(self.first(inputs).tanh())) * self.frozen


class Regression(ModuleWorkload):
    def __init__(self, *, seed=0, device="cpu"):
        super().__init__(build=lambda: Net().double(), seed=seed, device=device)

    def batch_loss(self, module, rng):
        return module(torch.from_numpy(rng.standard_normal((6, 3)))).square().mean()

    def loss(self, x):
        with self.evaluating(x) as module:
            return float(self.batch_loss(module, np.random.default_rng(0)))

    def shard(self, rank, size):
        return self.with_own_shell()


def at(seed=1):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(Regression().start().numel()))


def batch_loss(workload, x):
    with workload._at(x) as module, torch.no_grad():
        return float(workload.batch_loss(module.train(), np.random.default_rng(3)))


def test_gradient_agrees_with_finite_differences():
    workload, x, step = Regression(), at(), 1e-6
    g = workload.gradient(x, np.random.default_rng(3))
    moved = torch.eye(len(x)).double() * step
    slopes = [(batch_loss(workload, x + e) - batch_loss(workload, x - e)) / (2 * step) for e in moved]
    assert torch.allclose(g, torch.tensor(slopes).double(), atol=1e-8)
    assert torch.equal(g[:2], torch.zeros(2).double())
    assert g.abs().max() > 1e-3


def test_it_is_a_workload_that_leaves_x_alone():
    workload, x = Regression(), at().requires_grad_()
    assert isinstance(workload, Workload)
    before = x.detach().clone()
    g = workload.gradient(x, np.random.default_rng(0))
    workload.loss(x)
    assert torch.equal(x, before)
    assert x.grad is None
    assert not g.requires_grad


def test_gradients_work_with_autograd_off():
    with torch.no_grad():
        off = Regression().gradient(at(), np.random.default_rng(0))
        assert not torch.is_grad_enabled()
    assert torch.equal(off, Regression().gradient(at(), np.random.default_rng(0)))


def test_start_follows_the_seed_and_not_the_global_generator():
    state = torch.get_rng_state()
    first, same, other = (Regression(seed=seed).start() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_start_is_a_new_vector():
    workload = Regression()
    workload.start().zero_()
    assert workload.start().abs().sum() > 0


def test_shells_are_apart_and_hold_no_parameters():
    workload = Regression()
    shards = [workload.shard(rank, 3) for rank in range(3)]
    for one in [workload, *shards]:
        one.gradient(at(), np.random.default_rng(0))
        assert all(p.numel() == 0 for p in one._parameters)
    assert len({id(s._module) for s in shards}) == 3
    assert len({id(s._parameters[0]) for s in shards}) == 3
    assert {s._start.data_ptr() for s in shards} == {workload._start.data_ptr()}


def test_an_error_in_the_loss_leaves_the_shell_usable():
    workload, x = Regression(), at()
    with pytest.raises(AttributeError):
        workload.gradient(x, None)
    assert all(p.numel() == 0 for p in workload._parameters)
    assert torch.isfinite(workload.gradient(x, np.random.default_rng(0))).all()


def test_a_gradient_of_one_parameter_is_not_a_view():
    class Sum(Regression):
        def __init__(self):
            ModuleWorkload.__init__(self, build=lambda: nn.Linear(3, 1, bias=False), seed=0, device="cpu")

        def batch_loss(self, module, rng):
            return module.weight.sum()

    g = Sum().gradient(torch.zeros(3), np.random.default_rng(0))
    g[0] = 5
    assert g.tolist() == [5, 1, 1]


def test_it_travels_in_a_pickle():
    workload = Regression()
    twin = pickle.loads(pickle.dumps(workload))
    assert torch.equal(*(w.gradient(at(), np.random.default_rng(0)) for w in (workload, twin)))


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"Regression\.device must be a torch device such as 'cpu' or 'cuda', got 'x'"):
        Regression(device="x")
    with pytest.raises(ValueError, match=r"Regression\.seed must be at least 0, got -1"):
        Regression(seed=-1)
