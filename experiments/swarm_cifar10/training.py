"""One run: a plain PyTorch loop on virtual nodes that share one GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

import flockstep as fs
from benchmarks.report import Figures
from examples.cifar10_resnet import Images, ResNet20, accuracy
from experiments.swarm_cifar10.settings import METHODS, Job, Size
from flockstep.workloads.datasets import data_folder

NETWORK = fs.Network(bandwidth="1 Gbit/s", latency="1 ms")
COMPUTE = fs.Compute(step="20 ms", spread=0.3)
_MOMENTUM, _DECAY = 0.9, 5e-4


def run_all(jobs: list[Job], workers: int) -> Iterator[tuple[Figures, list[Figures]]]:
    """Every job's figures and its curve, as they are ready; several at a time keep a GPU busy."""
    # The longest first, so that none is left to run alone.
    waiting = sorted(jobs, key=lambda job: -job.passes)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        left = {pool.submit(run, job) for job in waiting}
        try:
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


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
    counts = {name: sum(node.counts.get(name, 0) for node in trace.nodes) for name in ("exchanges", "late steps")}
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
                right = accuracy(node.average_model(), _images(size, "test"))
                on_point({"passed": node.progress * job.passes, "accuracy": 100 * right, "virtual s": node.now})
                next_point += 1 / size.points
        node.meet()
        if node.rank == 0:
            return accuracy(node.average_model(), _images(size, "test")), node.spread
        return math.nan, math.nan


class Batches:
    """Rows, shifts and mirrors of one node's next batches: each pass goes over all images, shared out anew."""

    def __init__(self, size: Size, seed: int) -> None:
        self._size, self._seed, self._epoch = size, seed, 0
        self._luck = np.random.default_rng((seed, 1, fs.rank()))
        self._rows = self._share()

    def __next__(self) -> Tensor:
        batch = self._size.batch
        if len(self._rows) < batch:
            self._epoch += 1
            self._rows = self._share()
        rows, self._rows = self._rows[:batch], self._rows[batch:]
        right, down = self._luck.integers(9, size=(2, batch))
        return torch.from_numpy(np.stack([rows, right, down, self._luck.integers(2, size=batch)]))

    def _share(self) -> np.ndarray[Any, Any]:
        order = np.random.default_rng((self._seed, 0, self._epoch)).permutation(self._size.images)
        return order[fs.rank() :: fs.size()]


class Gradient:
    """Forward and backward of one batch; on a GPU recorded once and played back, as there are many small kernels."""

    def __init__(self, model: nn.Module, size: Size) -> None:
        self._model, self._images = model, _images(size, "train")
        self._batch = torch.zeros(4, size.batch, dtype=torch.int64, device=size.device)
        self._parameters = list(model.parameters())
        self._play: torch.cuda.CUDAGraph | None = None
        self._gradients: list[Tensor] = []
        if self._batch.is_cuda:
            self._record()

    def __call__(self, batch: Tensor) -> None:
        """Leave the gradients where an optimizer looks for them."""
        self._batch.copy_(batch, non_blocking=True)
        if self._play is None:
            self._gradients = self._compute()
        else:
            self._play.replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient

    def _record(self) -> None:
        # What the recording's rehearsals do to batch-norm's statistics must not be seen.
        kept = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._compute()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._gradients = self._compute()
        self._play = graph
        for name, buffer in self._model.named_buffers():
            buffer.copy_(kept[name])

    def _compute(self) -> list[Tensor]:
        rows, right, down, mirrored = self._batch
        places = torch.arange(32, device=rows.device)
        across = torch.where(mirrored[:, None] == 1, 31 - places, places) + right[:, None]
        along = places + down[:, None]
        picked = self._images.padded[rows[:, None, None], along[:, :, None], across[:, None, :]]
        images = (picked.float() / 255 - self._images.mean) / self._images.std
        loss = cross_entropy(self._model(images.permute(0, 3, 1, 2)), self._images.labels[rows])
        return list(torch.autograd.grad(loss, self._parameters))


class Padded(Images):
    """Images with a grey frame, so that a shifted one is a plain lookup."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.mean, self.std = self._mean.view(3), self._std.view(3)
        grey = (255 * self.mean).round().to(torch.uint8)
        framed = grey.view(1, 3, 1, 1).expand(len(self), 3, 40, 40).clone()
        framed[:, :, 4:36, 4:36] = self.pixels
        self.padded = framed.permute(0, 2, 3, 1).contiguous()


@cache
def _images(size: Size, part: str) -> Padded:
    path = next(data_folder("cifar10").glob(f"cifar10_{part}_*.npz"))
    return Padded(path, torch.device(size.device), most=size.images if part == "train" else size.tests)
