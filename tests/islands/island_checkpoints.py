"""Runs that are stopped and taken up, by as many processes in each island or by others; the same data for all."""

import warnings

import torch
from island_loops import Net, batch, loss, mean_of_gradients, optimizer_of, whole
from island_situations import left_whole, shard
from torch import nn

import flockstep as fs

HALVES = 2


class Partly(Net):
    """With a layer that does not train."""

    def __init__(self):
        super().__init__()
        self.second.requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.last(self.norm(torch.tanh(self.second(torch.tanh(self.first(x)))))) * self.scale


def backward(model, island, column, columns, k):
    """An island's data are two halves: a process has one of them, both, or shares one."""
    mine = range(HALVES) if columns == 1 else [column * HALVES // columns]
    for half in mine:
        (loss(model, *batch(island, half, k)) / len(mine)).backward()


def on_island(mesh, island, how, strategy, make, until, joining):
    """The model at the door, the model at the end, its buffers, and what was warned of."""
    column, columns = mesh.get_local_rank(), mesh.size()
    torch.manual_seed(77 + column)
    model = make().double()
    if how == "fsdp":
        shard(model, mesh)
    optimizer = optimizer_of(model)
    # As a run that begins anew, and must take all from the checkpoint.
    with torch.no_grad():
        model.last.bias.add_(island)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with fs.join(model, optimizer, strategy, island=mesh, **joining) as node:
            door = whole(model)
            for k in range(node.step_count, until):
                optimizer.zero_grad()
                backward(model, island, column, columns, k)
                mean_of_gradients(left_whole(model) if how == "fsdp" else list(model.parameters()), mesh)
                optimizer.step()
    said = [str(one.message) for one in warned if "resumed" in str(one.message)]
    return door, whole(model), {name: value.clone() for name, value in model.named_buffers()}, said


def on_plain_nodes(strategy, make, until, joining, nodes=2):
    def run():
        model = make().double()
        optimizer = optimizer_of(model)
        with fs.join(model, optimizer, strategy, **joining) as node:
            door = whole(model)
            for k in range(node.step_count, until):
                optimizer.zero_grad()
                backward(model, fs.rank(), 0, 1, k)
                optimizer.step()
        return door, whole(model)

    return fs.simulate(run, nodes=nodes).results
