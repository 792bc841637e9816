"""Five ordinary trainings: a GPT with AdamW, an LSTM with SGD, unclipped and clipped, a ResNet with momentum, logistic
regression.

Rates were tuned for one node alone, by ``python -m benchmarks.defaults --tune``, and are used as they are. Text is
what Python's own help says (``pydoc_data``), so that every machine has it; images are CIFAR-10 at half its size, from
the data folder, and where there is none this task is left out, which the table says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, scaled_dot_product_attention

from flockstep.workloads.datasets import data_folder

_LENGTH = 32
_TESTS = 64


@dataclass(frozen=True)
class Task:
    """What is trained, with what, and on which batches."""

    model: Callable[[], nn.Module]
    optimizer: Callable[..., torch.optim.Optimizer]
    rate: float
    batch: int
    draw: Callable[[int, np.random.Generator, bool], tuple[Tensor, Tensor]]
    """So many examples, of those to train on or to test on."""
    clip: float = math.inf
    """The longest gradient, cut as users cut it: between ``backward()`` and ``step()``."""

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The mean over a batch."""
        inputs, targets = batch
        return cross_entropy(model(inputs).flatten(0, -2), targets.flatten())

    def factor(self, progress: float) -> float:
        """What the rate is multiplied by: up within a twentieth of the run, then down along a cosine."""
        return min(1.0, 20 * progress + 0.05) * 0.5 * (1 + math.cos(math.pi * progress))

    @torch.no_grad()
    def tested(self, model: nn.Module) -> float:
        """The loss on what nobody trains on; the same examples always."""
        model.eval()
        rng = np.random.default_rng(12345)
        losses = [float(self.loss(model, self.draw(_TESTS, rng, True))) for _ in range(4)]
        model.train()
        return sum(losses) / len(losses)


@cache
def _text() -> tuple[Tensor, Tensor, int]:
    """Python's help as characters: to train on, to test on, and how many kinds there are."""
    whole = "\n".join(topics[key] for key in sorted(topics))
    kinds = sorted(set(whole))
    numbers = {kind: number for number, kind in enumerate(kinds)}
    coded = torch.tensor([numbers[kind] for kind in whole])
    cut = int(0.9 * len(coded))
    return coded[:cut], coded[cut:], len(kinds)


def _lines(count: int, rng: np.random.Generator, test: bool) -> tuple[Tensor, Tensor]:
    train, held_out, _ = _text()
    text = held_out if test else train
    begins = torch.from_numpy(rng.integers(len(text) - _LENGTH - 1, size=count))
    lines = text[begins[:, None] + torch.arange(_LENGTH + 1)]
    return lines[:, :-1], lines[:, 1:]


@cache
def _images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    found = []
    for part in ("train", "test"):
        packed = np.load(next(data_folder("cifar10").glob(f"cifar10_{part}_*.npz")), allow_pickle=False)
        # The file holds differences of neighbours and of channels, which pack better.
        pixels = packed["residual"].cumsum(3, dtype=np.uint8).cumsum(2, dtype=np.uint8)
        pixels[:, 0] += pixels[:, 1]
        pixels[:, 2] += pixels[:, 1]
        small = avg_pool2d(torch.from_numpy(pixels).float(), 2)
        found.append((small / 64 - 2, torch.from_numpy(packed["labels"].astype(np.int64))))
    return found[0], found[1]


def _pictures(count: int, rng: np.random.Generator, test: bool) -> tuple[Tensor, Tensor]:
    images, labels = _images()[1 if test else 0]
    rows = torch.from_numpy(rng.integers(len(labels), size=count))
    return images[rows], labels[rows]


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.all, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        q, k, v = self.all(self.norm(x)).view(count, length, 3 * self.heads, -1).transpose(1, 2).chunk(3, 1)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        gained: Tensor = self.out(mixed.transpose(1, 2).reshape(count, length, width))
        return x + gained


class _Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        gained: Tensor = self.inner(x)
        return x + gained


class GPT(nn.Module):
    """A small one: two blocks."""

    def __init__(self, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        kinds = _text()[2]
        self.token, self.place = nn.Embedding(kinds, width), nn.Embedding(_LENGTH, width)
        layers: list[nn.Module] = []
        for _ in range(blocks):
            wide = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            layers += [_Attention(width, heads), _Residual(wide)]
        self.blocks = nn.Sequential(*layers, nn.LayerNorm(width), nn.Linear(width, kinds))
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the next character, at every place."""
        return self.blocks(self.token(text) + self.place.weight)  # type: ignore[no-any-return]


class LSTM(nn.Module):
    """One layer."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        kinds = _text()[2]
        self.token, self.cell, self.out = (
            nn.Embedding(kinds, 32),
            nn.LSTM(32, width, batch_first=True),
            nn.Linear(width, kinds),
        )

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the next character, at every place."""
        return self.out(self.cell(self.token(text))[0])  # type: ignore[no-any-return]


class Logistic(nn.Module):
    """Of the next character, from the last three: a sum of one row for each."""

    def __init__(self) -> None:
        super().__init__()
        kinds = _text()[2]
        self.rows = nn.ModuleList([nn.Embedding(kinds, kinds, _weight=torch.zeros(kinds, kinds)) for _ in range(3)])

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the next character, from the third place on as good as they can be."""
        shifted = [torch.nn.functional.pad(text, (back, 0))[:, : text.shape[1]] for back in range(3)]
        logits: Tensor = sum(rows(seen) for rows, seen in zip(self.rows, shifted, strict=True))
        return logits


def _res_net() -> nn.Module:
    def conv(before: int, after: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
        )  # fmt: skip

    def block(width: int) -> nn.Module:
        return _Residual(nn.Sequential(conv(width, width), conv(width, width)))

    stem = [conv(3, 12), block(12), conv(12, 24, 2), block(24), conv(24, 48, 2), block(48)]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10), nn.Unflatten(1, (1, 10)))


_SGD = torch.optim.SGD
TASKS = {
    "GPT, AdamW": Task(GPT, partial(torch.optim.AdamW, weight_decay=0.1), 3e-3, 8, _lines),
    "LSTM, SGD": Task(LSTM, _SGD, 8.0, 8, _lines),
    "LSTM, clipped SGD": Task(LSTM, _SGD, 16.0, 8, _lines, clip=0.25),
    "ResNet, momentum": Task(_res_net, partial(_SGD, momentum=0.9, weight_decay=5e-4), 0.03, 16, _pictures),
    "logistic regression, SGD": Task(Logistic, _SGD, 64.0, 8, _lines),
}
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Of a task's rate: what is tried in tuning, and where a row may choose."""
