"""User's loops, written as users write them."""

import torch
from torch import nn

import flockstep as fs


def data(rank=0, count=48):
    generator = torch.Generator().manual_seed(1000 + rank)
    x = torch.randn(count, 4, generator=generator)
    return x, x.sum(1, keepdim=True) + 0.1 * torch.randn(count, 1, generator=generator)


def plain_model(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(dtype)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def iterate(steps, model, optimizer, scheduler, step, rank=0):
    """The user's loop itself, over the steps it is given."""
    x, y = data(rank)
    x, y = x.to(next(model.parameters()).dtype), y.to(next(model.parameters()).dtype)
    for k in steps:
        batch = slice(k % 6 * 8, k % 6 * 8 + 8)
        if step is not None:
            step(model, optimizer, x[batch], y[batch], k)
        else:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
        if scheduler:
            scheduler.step()


def train(strategy, *, make_model=plain_model, make_optimizer=sgd, steps=12, step=None, schedule=None, **joining):
    """The loop of the README: returns the final state of model and optimizer, and the node's report."""
    model = make_model()
    optimizer = make_optimizer(model)
    scheduler = schedule(optimizer) if schedule else None
    stateful = [scheduler] if scheduler else []
    with fs.join(model, optimizer, strategy, stateful=stateful, **joining) as node:
        iterate(range(node.step_count, steps), model, optimizer, scheduler, step, fs.rank())
        report = node.report()
    return model, optimizer, report


def alone(*, make_model=plain_model, make_optimizer=sgd, steps=12, step=None, schedule=None):
    """The same loop with the ``with`` line removed."""
    model = make_model()
    optimizer = make_optimizer(model)
    iterate(range(steps), model, optimizer, schedule(optimizer) if schedule else None, step)
    return model, optimizer


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert torch.equal(one[name], other[name]), name
