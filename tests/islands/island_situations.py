"""What models and loops may be like inside an island: each as its members train it, and as one plain node would."""

import contextlib
import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import island_loops
import torch
from island_loops import Net, mean_of_gradients, optimizer_of
from torch import nn

import flockstep as fs

STEPS = 7


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(5, 6)
        self.second = nn.Linear(6, 6)
        self.third = nn.Linear(6, 6, bias=False)
        self.third.weight = self.second.weight
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))))


class Frozen(Net):
    """A layer that does not train, and that members do not begin with alike."""

    def __init__(self):
        super().__init__()
        self.second.requires_grad_(False)


class Normalised(nn.Module):
    """Batch norm, with statistics that follow what each member sees, and a constant."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.first = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.second = nn.Linear(7, 3)
        self.last = nn.Linear(3, 1)
        self.register_buffer("table", torch.arange(12.0).view(3, 4) / 7)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.norm(self.first(x)))))) + self.table.mean()


class Complex(nn.Module):
    """Weights of complex numbers, beside real ones."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 3)
        self.mix = nn.Parameter(torch.randn(3, 2, dtype=torch.complex128) / 2)

    def forward(self, x):
        mixed = torch.tanh(self.second(torch.tanh(self.first(x)))).to(self.mix.dtype) @ self.mix
        return mixed.abs().sum(1, keepdim=True)


class Wide(Net):
    """A layer in another format, and two in which only every second step has a gradient."""

    def __init__(self):
        super().__init__()
        self.picture = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.now_and_then = nn.Linear(5, 1)


@dataclass
class Situation:
    """``how`` the model is inside; ``spoilt``: at that step one member's loss is infinite."""

    make: Any
    how: str = "fsdp"
    strategy: Any = fs.CELGC(period=3, gamma=0.05)
    spoilt: int | None = None
    several: bool = False
    evaluates: bool = False


SITUATIONS = {
    "tied weights": Situation(Tied),
    "frozen": Situation(Frozen),
    "frozen replicas": Situation(Frozen, "replicas", fs.DiLoCo(period=3)),
    "batch norm": Situation(Normalised, "fsdp", fs.LocalSGD(period=3)),
    "batch norm in replicas, late": Situation(Normalised, "replicas", fs.HPSGD(period=2)),
    "complex": Situation(Complex, "replicas"),
    "sometimes no gradient": Situation(Wide, "replicas", fs.DataParallel()),
    "channels last": Situation(Wide, "replicas"),
    "not finite, unseen": Situation(Net, "fsdp", fs.LocalSGD(period=3), spoilt=4),
    "not finite, clipped": Situation(Net, "fsdp", spoilt=4),
    "not finite, averaged": Situation(Net, "fsdp", fs.DataParallel(), spoilt=4),
    "several optimizers": Situation(Net, "fsdp", several=True),
    "evaluates between steps": Situation(Net, "fsdp", fs.HPSGD(period=2), evaluates=True),
}


def shard(model, mesh, **options):
    from torch.distributed.fsdp import fully_shard

    # What is tied must be sharded together.
    for layer in (model.first,) if isinstance(model, Tied) else (model.first, model.second):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, ignored_params=set(left_whole(model)), **options)


def left_whole(model):
    """What FSDP does not shard: a single number."""
    return [model.scale] if isinstance(model, Net) else []


def optimizers_of(model, situation):
    if not situation.several:
        return [optimizer_of(model)]
    first = list(model.first.parameters())
    rest = [p for p in model.parameters() if all(p is not other for other in first)]
    return [torch.optim.SGD(first, lr=0.1, momentum=0.5), torch.optim.Adam(rest, lr=0.02)]


def loss_of(model, situation, island, column, k):
    x, y = island_loops.batch(island, column, k)
    out = model(x)
    if isinstance(model, Wide) and k % 2:
        out = out + model.now_and_then(x) + model.picture(x[:, :4].reshape(3, 2, 2, 2)).mean()
    spoilt = situation.spoilt == k and (island, column) == (0, 1)
    return nn.functional.mse_loss(out, y) * (float("inf") if spoilt else 1.0)


def whole_state(model):
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
        for name, value in model.state_dict().items()
    }


def statistics(model):
    return [buffer for name, buffer in model.named_buffers() if name.startswith("norm")]


def train(model, optimizers, node, situation, backward):
    for k in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(k)
        for optimizer in optimizers:
            optimizer.step()
        if situation.evaluates:
            with torch.no_grad():
                model(island_loops.batch(0, 0, k)[0])


def outcome(model, node):
    """The model, what it says in evaluation, and what was counted."""
    model.eval()
    with torch.no_grad():
        said = model(island_loops.batch(9, 0, 0)[0])
    return {**whole_state(model), "said": said}, node.report().counts


def on_islands(mesh, island, names):
    outcomes = []
    for name in names:
        situation, column = SITUATIONS[name], mesh.get_local_rank()
        model = situation.make().double()
        if isinstance(model, Frozen) and situation.how == "replicas":
            # All members take what the first island's first has.
            model.second.weight.data.add_(2 * island + column)
        if situation.how == "fsdp":
            shard(model, mesh)
        whole = left_whole(model) if situation.how == "fsdp" else list(model.parameters())
        reduce = partial(mean_of_gradients, whole, mesh)
        optimizers = optimizers_of(model, situation)

        def backward(k, model=model, situation=situation, column=column, reduce=reduce):
            loss_of(model, situation, island, column, k).backward()
            reduce()

        with fs.join(model, optimizers, situation.strategy, island=mesh) as node:
            train(model, optimizers, node, situation, backward)
        outcomes.append(outcome(model, node))
    return outcomes


def on_plain_nodes(name, islands, columns):
    situation = SITUATIONS[name]

    def run():
        model = situation.make().double()
        optimizers = optimizers_of(model, situation)

        def backward(k):
            # Each member's own, of which the island's are the mean; in numbers of batches all are alike.
            before = [buffer.clone() for buffer in statistics(model)]
            seen = []
            for column in range(columns):
                for buffer, value in zip(statistics(model), before, strict=True):
                    buffer.copy_(value)
                (loss_of(model, situation, fs.rank(), column, k) / columns).backward()
                seen.append([buffer.clone() for buffer in statistics(model)])
            for buffer, *values in zip(statistics(model), *seen, strict=True):
                mean = torch.stack(values).double().mean(0)
                buffer.copy_(mean)

        with fs.join(model, optimizers, situation.strategy) as node:
            train(model, optimizers, node, situation, backward)
        return outcome(model, node)

    return fs.simulate(run, nodes=islands).results


def averages(mesh, island):
    """The average model in the middle of a run, of shards into shards and into a whole model, and of replicas."""
    found = {}
    for how in ("fsdp", "replicas"):
        model, column = Net().double(), mesh.get_local_rank()
        if how == "fsdp":
            shard(model, mesh)
        optimizer = optimizer_of(model)
        targets = {"whole": Net().double()}
        if how == "fsdp":
            targets["shards"] = shard(Net().double(), mesh)
        with fs.join(model, optimizer, fs.LocalSGD(period=100), island=mesh) as node:
            for k in range(3):
                optimizer.zero_grad()
                loss_of(model, SITUATIONS["frozen"], island, column, k).backward()
                mean_of_gradients(left_whole(model) if how == "fsdp" else list(model.parameters()), mesh)
                optimizer.step()
            node.meet()
            for name, target in targets.items():
                found[f"{how} into {name}"] = whole_state(node.average_model(into=target))
            if how == "replicas":
                found["a copy of replicas"] = whole_state(node.average_model())
            found[f"{how}: spread"] = node.spread
            node.meet()
    return found


def plain_average(islands, columns):
    def run():
        model = Net().double()
        optimizer = optimizer_of(model)
        with fs.join(model, optimizer, fs.LocalSGD(period=100)) as node:
            for k in range(3):
                optimizer.zero_grad()
                for column in range(columns):
                    (loss_of(model, SITUATIONS["frozen"], fs.rank(), column, k) / columns).backward()
                optimizer.step()
            node.meet()
            average = copy.deepcopy(whole_state(node.average_model()))
            node.meet()
        return average, node.spread

    return fs.simulate(run, nodes=islands).results[0]


POLICIES = ("as it is", "mixed precision", "offloaded", "never whole for long", "ddp")


def silently(mesh, island):
    """A join in which nothing is exchanged, and the bare loop: both models, step for step, under FSDP's policies."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    options = {
        "mixed precision": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
        "offloaded": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
        "never whole for long": {"reshard_after_forward": True},
    }
    found = {}
    for policy in POLICIES:
        for strategy in (None, fs.LocalSGD(period=10**6), fs.CELGC(period=10**6, gamma=1e6)):
            model = Tied()
            if policy == "ddp":
                trained = nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group())
            else:
                trained = shard(model, mesh, **options.get(policy, {}))
            optimizer = torch.optim.AdamW(trained.parameters(), lr=0.02)
            joined = (
                contextlib.nullcontext() if strategy is None else fs.join(trained, optimizer, strategy, island=mesh)
            )
            with joined:
                for k in range(STEPS):
                    optimizer.zero_grad()
                    x, y = island_loops.batch(island, mesh.get_local_rank(), k)
                    nn.functional.mse_loss(trained(x.float()).float(), y.float()).backward()
                    optimizer.step()
                found[policy, str(strategy)] = whole_state(model)
    return found


class Plan(nn.Module):
    """Layers that tensor parallel cuts along columns, along rows, and not at all."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.last = nn.Linear(5, 8), nn.Linear(8, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def tensor_parallel(mesh, island, strategies):
    """Members have parts of layers, and the same data."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    found = []
    for strategy in strategies:
        model = Plan().double()
        if mesh is not None:
            parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with fs.join(model, optimizer, strategy) as node:
            for k in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, SITUATIONS["frozen"], fs.rank(), 0, k).backward()
                optimizer.step()
        found.append((whole_state(model), node.report().counts))
    return found
