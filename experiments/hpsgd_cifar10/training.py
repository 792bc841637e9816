"""One run of a plain PyTorch loop on four virtual nodes, as long as the wall time allows."""

from __future__ import annotations

import copy
import math
import time

import torch
from torch import Tensor, nn
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
    looks = Looks(job)
    trace = fs.simulate(
        lambda: train(job, steps, looks), nodes=NODES, network=job.network, compute=COMPUTE, seed=job.size.seed
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
    return figures, [{**place, **point} for point in looks.curve]


class Looks:
    """How good the average of all nodes' models is, along the way.

    Virtual nodes are in one process, so that looking costs no virtual time, as asking for models would.
    """

    def __init__(self, job: Job) -> None:
        self.curve: list[Figures] = []
        self._job, self._here = job, 0
        self._sum: dict[str, Tensor] | None = None

    def look(self, model: nn.Module, step: int, now: float) -> None:
        """A node has come to a step at which all are looked at; the last to come has the average."""
        state = {name: tensor.detach().double() for name, tensor in model.state_dict().items()}
        before = self._sum
        self._sum = state if before is None else {name: before[name] + tensor for name, tensor in state.items()}
        self._here += 1
        if self._here == NODES:
            average = copy.deepcopy(model)
            average.load_state_dict({name: tensor / NODES for name, tensor in self._sum.items()})
            right = accuracy(average, images_of(self._job.size, "test"))
            self.curve.append({"step": step, "accuracy": 100 * right, "virtual s": now})
            self._sum, self._here = None, 0


def train(job: Job, steps: int, looks: Looks) -> float:
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
            if k % max(1, steps // size.points) == 0:
                looks.look(model, k, node.now)
    return accuracy(model, images_of(size, "test")) if node.rank == 0 else math.nan
