"""One run of a plain PyTorch loop on four virtual nodes, as long as the wall time allows."""

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
from experiments.hpsgd_cifar10.settings import COMPUTE, METHODS, NODES, Job, steps_in_time

_DECAY = 5e-4


def run(job: Job) -> tuple[Figures, list[Figures]]:
    """Train; what came of it, and how it went."""
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    began, steps = time.monotonic(), steps_in_time(job)
    curve: list[Figures] = []
    trace = fs.simulate(
        lambda: train(job, steps, curve.append), nodes=NODES, network=job.network, compute=COMPUTE, seed=job.size.seed
    )
    place = {"method": job.method, "link": job.link}
    figures = {
        **place,
        "accuracy": round(100 * trace.results[0], 2),
        "steps per node": steps,
        "virtual s": round(trace.seconds, 1),
        "computing": round(trace.busy, 3),
        "MB sent per node": round(trace.bytes_sent / 1e6, 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    return figures, [{**place, **point} for point in curve]


def train(job: Job, steps: int, on_point: Callable[[Figures], None]) -> float:
    """The loop of one node: nothing in it but the ``with`` line knows of the others."""
    size = job.size
    torch.manual_seed(size.seed)
    model = ResNet20().to(size.device)
    # Without momentum, as the authors have it.
    optimizer = torch.optim.SGD(model.parameters(), size.rate, weight_decay=_DECAY, foreach=True)
    schedule = LambdaLR(optimizer, lambda k: 0.5 * (1 + math.cos(math.pi * min(1.0, k / steps))))
    with fs.join(model, optimizer, METHODS[job.method]) as node:
        gradient, batches = Gradient(model, size), Batches(size, size.seed)
        for k in range(1, steps + 1):
            gradient(next(batches))
            optimizer.step()
            schedule.step()
            if node.rank == 0 and k % max(1, steps // size.points) == 0:
                right = accuracy(node.average_model(), images_of(size, "test"))
                on_point({"step": k, "accuracy": 100 * right, "virtual s": node.now})
    return accuracy(model, images_of(size, "test")) if node.rank == 0 else math.nan
