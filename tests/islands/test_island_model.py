"""One member's vector, in a world of one process."""

import pytest
import torch
import torch.distributed as dist
from island_loops import Net, batch, loss

from flockstep.backends.loop.island import Island
from flockstep.backends.loop.island_model import IslandModel


@pytest.fixture
def island():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield Island(dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.parametrize("fine", [True, False])
def test_gradients_that_nobody_looked_at_are_zero_where_they_were_not_finite(island, fine):
    """As it is on a GPU, where a kernel decides."""
    model = Net().double()
    flat = IslandModel(model, island)
    loss(model, *batch(0, 0, 0)).backward()
    if not fine:
        model.first.weight.grad[0, 0] = torch.nan
    before = [parameter.grad.clone() for parameter in model.parameters()]
    g = flat.gradient()
    g.masked_fill_(torch.tensor(not fine), 0.0)
    flat.guarded(g, torch.tensor(fine))
    flat.set_gradient(g, of_all=False)
    for parameter, was in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, was if fine else torch.zeros_like(was))


def test_what_a_strategy_makes_of_a_gradient_is_what_is_stepped_with(island):
    model = Net().double()
    flat = IslandModel(model, island)
    loss(model, *batch(0, 0, 0)).backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    g = flat.gradient()
    flat.guarded(g, torch.tensor(True))
    g *= 0.5
    flat.set_gradient(g, of_all=False)
    for parameter, was in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, was / 2)
    flat.set_gradient(None, of_all=False)
    assert all(parameter.grad is None for parameter in model.parameters())
