"""One run: a plain PyTorch loop on virtual nodes that share one GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import LambdaLR

import flockstep as fs
from benchmarks.report import Figures
from examples.cifar10_resnet import ResNet20, accuracy
from experiments.cifar10 import Batches, Gradient, images_of
from experiments.swarm_cifar10.settings import METHODS, Job

NETWORK = fs.Network(bandwidth="1 Gbit/s", latency="1 ms")
COMPUTE = fs.Compute(step="20 ms", spread=0.3)
_MOMENTUM, _DECAY = 0.9, 5e-4


def run(job: Job) -> tuple[Figures, list[Figures]]:
    """Train; what came of it, and how it went."""
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    began = time.monotonic()
    curve: list[Figures] = []
    trace = fs.simulate(
        lambda: train(job, curve.append), nodes=job.nodes, network=NETWORK, compute=COMPUTE, seed=job.seed
    )
    right, spread = trace.results[0]
    counts = {name: sum(node.counts.get(name, 0) for node in trace.nodes) for name in ("exchanges", "partners busy")}
    place = {"method": job.method, "nodes": job.nodes, "passes": job.passes, "seed": job.seed}
    figures = {
        **place,
        "accuracy": round(100 * right, 2),
        "spread": spread,
        "virtual s": round(trace.seconds, 1),
        "MB sent per node": round(trace.bytes_sent / 1e6, 1),
        "steps in all": sum(node.steps for node in trace.nodes),
        **counts,
        "blocks out of reach": sum(node.counts.get("blocks out of reach", 0) for node in trace.nodes),
        "seconds": round(time.monotonic() - began, 1),
    }
    return figures, [{**place, **point} for point in curve]


def train(job: Job, on_point: Callable[[Figures], None]) -> tuple[float, float]:
    """The loop of one node: nothing in it but the ``with`` line knows of the others."""
    size = job.size
    torch.manual_seed(job.seed)
    model = ResNet20().to(size.device)
    optimizer = torch.optim.SGD(model.parameters(), size.rate, _MOMENTUM, weight_decay=_DECAY, foreach=True)
    schedule = LambdaLR(optimizer, fs.progress(lambda p: 0.5 * (1 + math.cos(math.pi * p))))
    with fs.join(model, optimizer, METHODS[job.method], budget=job.budget) as node:
        gradient = Gradient(model, size)
        batches, next_point = Batches(size, job.seed), 1 / size.points
        while node.progress < 1:
            gradient(next(batches))
            optimizer.step()
            schedule.step()
            if node.rank == 0 and node.progress >= next_point:
                right = accuracy(node.average_model(), images_of(size, "test"))
                on_point({"passed": node.progress * job.passes, "accuracy": 100 * right, "virtual s": node.now})
                next_point += 1 / size.points
        node.meet()
        if node.rank == 0:
            return accuracy(node.average_model(), images_of(size, "test")), node.spread
        return math.nan, math.nan
