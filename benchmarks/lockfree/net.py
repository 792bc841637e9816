"""A small convolutional net on images of random numbers: for speed, they are as good as any."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.lockfree.ways import Apart, Locked, Way
from flockstep.backends.real.crew.crew import gather
from flockstep.backends.real.launch.child_processes import context
from flockstep.workloads.module import ModuleWorkload

BATCH, IMAGES, RATE = 16, 1024, 0.01
SGD = partial(torch.optim.SGD, lr=RATE)
TIMEOUT = 120.0


def build() -> nn.Module:
    """24,000 parameters for images of 3 x 32 x 32."""
    widths: list[int] = [3, 16, 32, 64]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def images() -> tuple[Tensor, Tensor]:
    """As many as fit a cache, with labels."""
    rng = np.random.default_rng(0)
    return (
        torch.from_numpy(rng.standard_normal((IMAGES, 3, 32, 32), dtype=np.float32)),
        torch.from_numpy(rng.integers(10, size=IMAGES)),
    )


class SmallNet(ModuleWorkload):
    """The net as a workload."""

    def __init__(self) -> None:
        super().__init__(build=build, seed=0, device="cpu")
        self._images, self._labels = images()

    def batch_loss(self, module: nn.Module, rng: np.random.Generator) -> Tensor:
        """On a batch drawn with replacement."""
        drawn = torch.from_numpy(rng.integers(IMAGES, size=BATCH))
        return cross_entropy(module(self._images[drawn]), self._labels[drawn])

    def loss(self, x: Tensor) -> float:
        """On all images."""
        with self.evaluating(x) as module:
            return float(cross_entropy(module(self._images), self._labels))

    def shard(self, rank: int, size: int) -> Self:
        """All of it."""
        return self.with_own_shell()


def ways(stack: ExitStack) -> list[Way]:
    """Everything there is to compare, started; ``stack`` ends it."""

    def crew(workload: Any, threads: int) -> Any:
        it = gather(workload, workload.start(), SGD, threads=threads, seed=0, rank=0, timeout=TIMEOUT)
        stack.callback(it.close)
        return it

    one, two = crew(SmallNet(), 1), crew(SmallNet(), 2)
    locked = crew(Locked(SmallNet(), context().Lock(), 1), 2)
    apart = crew(Apart(SmallNet()), 2)
    theirs = Hogwild(2)
    stack.callback(theirs.close)
    return [
        Way.of_crew("1 thread", one, [1], over="1 thread"),
        Way.of_crew("2 processes, lock-free", two, [1, 1], over="1 thread"),
        Way.of_crew("2 processes, a lock", locked, [1, 1], over="1 thread"),
        Way(
            name="torch's hogwild, 1 process", run=partial(theirs.work, 1), members=1, over="torch's hogwild, 1 process"
        ),
        Way(
            name="torch's hogwild, 2 processes",
            run=partial(theirs.work, 2),
            members=2,
            over="torch's hogwild, 1 process",
        ),
        Way.of_crew("1 process apart", apart, [1, 0], over="1 process apart"),
        Way.of_crew("2 processes apart", apart, [1, 1], over="1 process apart"),
    ]


class Hogwild:
    """The pattern of torch's own example: a module in shared memory, and processes with optimizers on it."""

    def __init__(self, processes: int) -> None:
        forking = context()
        model = build().share_memory()
        pipes = [forking.Pipe() for _ in range(processes)]
        self._lines = [ours for ours, _ in pipes]
        self._processes = [
            forking.Process(target=_train, args=(theirs, model, *images(), seed), daemon=True)
            for seed, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def work(self, processes: int, steps: int) -> None:
        """Let so many of the processes take steps."""
        for line in self._lines[:processes]:
            line.send(steps)
        for line in self._lines[:processes]:
            line.recv()

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.join()


def _train(line: Connection, model: nn.Module, images: Tensor, labels: Tensor, seed: int) -> None:
    torch.set_num_threads(1)
    optimizer, rng = SGD(model.parameters()), np.random.default_rng(seed)
    model.train()
    while True:
        for _ in range(line.recv()):
            drawn = torch.from_numpy(rng.integers(IMAGES, size=BATCH))
            optimizer.zero_grad()
            cross_entropy(model(images[drawn]), labels[drawn]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        line.send(None)
