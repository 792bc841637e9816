"""One run: a plain PyTorch loop on virtual nodes that share one GPU."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import flockstep as fs
from benchmarks.report import Figures
from examples.cifar10_resnet import Images, ResNet20, accuracy
from experiments.cifar10 import Batches, Gradient, images_of
from experiments.swarm_cifar10.settings import METHODS, Job

COMPUTE = fs.Compute(step="20 ms", spread=0.3)
_MOMENTUM, _DECAY = 0.9, 5e-4
_BATCH = 500


def run(job: Job) -> tuple[Figures, list[Figures]]:
    """Train; what came of it, and how it went."""
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    began = time.monotonic()
    curve: list[Figures] = []
    network = METHODS[job.method].network
    trace = fs.simulate(
        lambda: train(job, curve.append), nodes=job.nodes, network=network, compute=COMPUTE, seed=job.seed
    )
    last = trace.results[0]
    steps = sum(node.steps for node in trace.nodes)
    counts = {name: sum(node.counts.get(name, 0) for node in trace.nodes) for name in ("exchanges", "partners busy")}
    place = {"method": job.method, "nodes": job.nodes, "passes": job.passes, "seed": job.seed}
    figures = {
        **place,
        **{name: round(value, 4 if name == "spread" else 2) for name, value in last.items()},
        "virtual s": round(trace.seconds, 1),
        "MB sent per node": round(trace.bytes_sent / 1e6, 1),
        "steps in all": steps,
        **counts,
        "averages per node and step": round(_averages(trace, job.method) / steps, 3),
        "blocks out of reach": sum(node.counts.get("blocks out of reach", 0) for node in trace.nodes),
        "seconds": round(time.monotonic() - began, 1),
    }
    return figures, [{**place, **point} for point in curve]


def _averages(trace: fs.Trace, method: str) -> int:
    """How many averages of two nodes took part in: Swarm's caller counts one for both, pairs that wait count each."""
    return sum(node.counts.get("exchanges", 0) for node in trace.nodes) * (1 if "SwarmPairs" in method else 2)


def train(job: Job, on_point: Callable[[Figures], None]) -> Figures:
    """The loop of one node: nothing in it but the ``with`` line knows of the others."""
    size = job.size
    torch.manual_seed(job.seed)
    model = ResNet20().to(size.device)
    optimizer = torch.optim.SGD(model.parameters(), size.rate, _MOMENTUM, weight_decay=_DECAY, foreach=True)
    schedule = LambdaLR(optimizer, fs.progress(lambda p: 0.5 * (1 + math.cos(math.pi * p))))
    tests = images_of(size, "test")
    with fs.join(model, optimizer, METHODS[job.method].strategy, budget=job.budget) as node:
        gradient = Gradient(model, size)
        batches, next_point = Batches(size, job.seed), 1 / size.points
        while node.progress < 1:
            gradient(next(batches))
            optimizer.step()
            schedule.step()
            if node.rank == 0 and node.progress >= next_point:
                right = accuracy(node.average_model(), tests)
                on_point({"passed": node.progress * job.passes, "accuracy": 100 * right, "virtual s": node.now})
                next_point += 1 / size.points
        node.meet()
        if node.rank > 0:
            return {}
        average = node.average_model()
        return {
            "accuracy": 100 * accuracy(average, tests),
            "with statistics anew": 100 * accuracy(_with_statistics_anew(average, images_of(size, "train")), tests),
            "of node 0 alone": 100 * accuracy(copy.deepcopy(model), tests),
            "spread": node.spread,
        }


def _with_statistics_anew(model: nn.Module, images: Images) -> nn.Module:
    """Batch norm's means and variances as this very model has them, and not averages of the nodes' own."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        # None: the plain mean over all batches.
        norm.momentum = None
    model.train()
    with torch.no_grad():
        for first in range(0, len(images), _BATCH):
            rows = torch.arange(first, min(first + _BATCH, len(images)), device=images.pixels.device)
            model(images.take(rows)[0])
    return model
