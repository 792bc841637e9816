"""``fs.train``: a module, a loss and data, and a flock."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import flockstep as fs

SGD = partial(torch.optim.SGD, lr=0.1)
WEIGHTS = torch.tensor([[1.0], [-2.0], [0.5]])


def error(module, batch):
    x, y = batch
    return mse_loss(module(x), y)


def examples(count=90):
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return x, x @ WEIGHTS


@pytest.mark.parametrize(
    "wrap", [lambda x, y: (x, y), lambda x, y: [x, y], TensorDataset], ids=["tuple", "list", "set"]
)
@pytest.mark.parametrize(("strategy", "nodes"), [(fs.LocalSGD(period=4), 2), (fs.DPSGD(), 1), (fs.DPSGD(), 3)])
@pytest.mark.cases(check=3)
def test_it_learns(strategy, nodes, wrap):
    model = nn.Linear(3, 1)
    trace = fs.train(
        model,
        error,
        wrap(*examples()),
        strategy,
        nodes=nodes,
        steps=100,
        batch=8,
        optimizer=SGD,
        on="threads",
        timeout=60,
    )
    assert error(model, examples()).item() < 1e-2 < trace.rows[0].loss
    assert trace.loss < 1e-2


def test_one_node_is_the_loop_one_would_write():
    torch.manual_seed(1)
    ours, theirs = nn.Linear(3, 1), nn.Linear(3, 1)
    theirs.load_state_dict(ours.state_dict())
    x, y = examples()
    fs.train(ours, error, (x, y), fs.LocalSGD(period=1), nodes=1, steps=7, batch=5, optimizer=SGD, on="threads", seed=3)
    rng, optimizer = fs.node.stream(3, 0, "data"), SGD(theirs.parameters())
    for _ in range(7):
        rows = torch.from_numpy(rng.integers(len(x), size=5))
        optimizer.zero_grad()
        error(theirs, (x[rows], y[rows])).backward()
        optimizer.step()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_frozen_parameters_stay():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    fs.train(model, error, examples(), fs.DPSGD(), nodes=1, steps=20, on="threads")
    assert torch.equal(model[0].weight, before)


@pytest.mark.slow
def test_on_processes():
    model = nn.Linear(3, 1)
    fs.train(model, error, examples(), fs.DPSGD(period=2), nodes=2, steps=100, optimizer=SGD, timeout=120)
    assert error(model, examples()).item() < 1e-2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": 3}, "Supervised.module must be a torch module"),
        ({"model": nn.BatchNorm1d(3)}, "a loop of your own"),
        ({"data": (torch.ones(3), torch.ones(4))}, r"tensors of one length, got \[3, 4\]"),
        ({"data": 5}, "must be a tuple of tensors, or a dataset"),
        ({"data": (torch.ones(0, 3), torch.ones(0, 1))}, "must be at least 1"),
        ({"batch": 0}, "Supervised.batch must be at least 1"),
    ],
)
def test_bad_arguments_are_named(change, message):
    given = {"model": nn.Linear(3, 1), "loss": error, "data": examples(), "strategy": fs.DPSGD(), "nodes": 1} | change
    with pytest.raises((TypeError, ValueError), match=message):
        fs.train(given.pop("model"), given.pop("loss"), given.pop("data"), given.pop("strategy"), **given)
