"""One loop, on islands and on plain nodes whose gradient is the mean of their members'."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

import flockstep as fs

COLUMNS_OF_DATA = 4
BATCH = 6


class Net(nn.Module):
    """With layers that do not divide, one that is smaller than an island, and a bias of one number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 3)
        self.last = nn.Linear(3, 1)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x))))) * self.scale


def batch(island, column, k):
    """What one member trains with at step k: scaled, so that some steps are long and others short."""
    generator = torch.Generator().manual_seed(10_000 * island + 100 * column + k)
    x = torch.randn(BATCH, 5, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin() * (3.0 if k % 3 == 0 else 0.5)


def loss(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def shard(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for layer in (model.first, model.second):
        fully_shard(layer, mesh=mesh)
    # One number cannot be cut: every member has it.
    return fully_shard(model, mesh=mesh, ignored_params={model.scale})


def inside(model, mesh, how):
    """The model as its island trains it, and what is called before a step."""
    if how == "fsdp":
        return shard(model, mesh), lambda: mean_of_gradients([model.scale], mesh)
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group()), lambda: None
    return model, lambda: mean_of_gradients(list(model.parameters()), mesh)


def mean_of_gradients(parameters, mesh):
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=mesh.get_group())
            parameter.grad /= mesh.size()


def whole(model):
    """All parameters of a model, whole, by name."""
    named = {name.removeprefix("module."): p.detach() for name, p in model.named_parameters()}
    # Of a mesh of one process, what is whole is the shard itself.
    return {name: (p.full_tensor() if hasattr(p, "full_tensor") else p).clone() for name, p in named.items()}


def optimizer_of(model):
    groups = [p for name, p in model.named_parameters() if "second" in name]
    rest = [p for name, p in model.named_parameters() if "second" not in name]
    return torch.optim.AdamW([{"params": rest}, {"params": groups, "lr": 0.03}], lr=0.02)


def on_islands(mesh, island, how, strategies, steps, make=Net, dtype=torch.float64):
    """Several joins one after another: of each the model that came out, and what was counted."""
    outcomes = []
    for strategy in strategies:
        model = make().to(dtype)
        trained, before_step = inside(model, mesh, how)
        optimizer = optimizer_of(trained)
        with fs.join(trained, optimizer, strategy, island=None if how == "fsdp" else mesh) as node:
            assert (node.rank, node.column, node.size) == (island, mesh.get_local_rank(), fs.size())
            for k in range(steps):
                optimizer.zero_grad()
                x, y = batch(island, mesh.get_local_rank(), k)
                loss(trained, x.to(dtype), y.to(dtype)).backward()
                before_step()
                optimizer.step()
        report = node.report()
        outcomes.append({"model": whole(trained), "counts": report.counts, "bytes": report.bytes_sent})
    return outcomes


def on_plain_nodes(strategy, islands, columns, steps, make=Net, dtype=torch.float64):
    """The same, where each node has all of its members' batches."""

    def train():
        model = make().to(dtype)
        optimizer = optimizer_of(model)
        with fs.join(model, optimizer, strategy) as node:
            for k in range(steps):
                optimizer.zero_grad()
                for column in range(columns):
                    x, y = batch(fs.rank(), column, k)
                    (loss(model, x.to(dtype), y.to(dtype)) / columns).backward()
                optimizer.step()
        report = node.report()
        return {"model": whole(model), "counts": report.counts, "bytes": report.bytes_sent}

    return fs.simulate(train, nodes=islands).results


@dataclass(frozen=True, kw_only=True)
class Lazy:
    """The README's: averages when the model has moved far enough; by its whole length, or by what a process sees."""

    distance: float
    whole: bool

    async def run(self, node):
        x, anchor = node.params, node.params.clone()
        async for _ in node.steps():
            await node.step(await node.gradient(x))
            moved = node.length(x - anchor) if self.whole else (x - anchor).norm()
            if (await node.mean(moved.reshape(1), "moved")).item() > self.distance:
                x.copy_(await node.mean(x))
                anchor.copy_(x)


def own_strategies(mesh, island, strategies):
    """What each of them trains, or says."""
    found = []
    for strategy in strategies:
        try:
            found += on_islands(mesh, island, "replicas", [strategy], 8)
        except fs.Mismatch as error:
            found.append(str(error))
    return found
