"""CIFAR-10 for virtual nodes that share one GPU: batches, and gradients as recorded graphs."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flockstep as fs
from examples.cifar10_resnet import Images
from flockstep.workloads.datasets import data_folder


class Data(Hashable, Protocol):
    """How much of it, and where."""

    @property
    def images(self) -> int:
        """To train on."""

    @property
    def tests(self) -> int:
        """To test on."""

    @property
    def batch(self) -> int:
        """Images per step and node."""

    @property
    def device(self) -> str:
        """A torch device."""


class Batches:
    """Rows, shifts and mirrors of one node's next batches: each pass goes over all images, shared out anew."""

    def __init__(self, data: Data, seed: int) -> None:
        self._data, self._seed, self._epoch = data, seed, 0
        self._luck = np.random.default_rng((seed, 1, fs.rank()))
        self._rows = self._share()

    def __next__(self) -> Tensor:
        batch = self._data.batch
        if len(self._rows) < batch:
            self._epoch += 1
            self._rows = self._share()
        rows, self._rows = self._rows[:batch], self._rows[batch:]
        right, down = self._luck.integers(9, size=(2, batch))
        return torch.from_numpy(np.stack([rows, right, down, self._luck.integers(2, size=batch)]))

    def _share(self) -> np.ndarray[Any, Any]:
        order = np.random.default_rng((self._seed, 0, self._epoch)).permutation(self._data.images)
        return order[fs.rank() :: fs.size()]


class Gradient:
    """Forward and backward of one batch; on a GPU recorded once and played back, as there are many small kernels."""

    def __init__(self, model: nn.Module, data: Data) -> None:
        self._model, self._images = model, images_of(data, "train")
        self._batch = torch.zeros(4, data.batch, dtype=torch.int64, device=data.device)
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
def images_of(data: Data, part: str) -> Padded:
    """Those to "train" or to "test" on."""
    path = next(data_folder("cifar10").glob(f"cifar10_{part}_*.npz"))
    return Padded(path, torch.device(data.device), most=data.images if part == "train" else data.tests)
