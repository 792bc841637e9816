"""The task of the race: a character LSTM on the embedded text, Adam, random windows of each node's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flockstep.workloads.datasets import shakespeare
from flockstep.workloads.language import RecurrentModel

LENGTH, EMBEDDING = 32, 128
_HELD_BACK = 0.1
_WINDOWS = 256


@cache
def text() -> tuple[Tensor, Tensor, int]:
    """Characters to train on, characters to validate on, and how many different ones there are."""
    letters = sorted(set(shakespeare()))
    numbers = {letter: number for number, letter in enumerate(letters)}
    whole = torch.tensor([numbers[letter] for letter in shakespeare()])
    cut = round((1 - _HELD_BACK) * len(whole))
    return whole[:cut], whole[cut:], len(letters)


def build(hidden: int, rate: float, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same model on every node."""
    torch.manual_seed(seed)
    model = RecurrentModel(vocabulary=text()[2], embedding=EMBEDDING, hidden=hidden, layers=1, tied=False)
    return model, torch.optim.Adam(model.parameters(), lr=rate)


def stepper(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, batch: int, rank: int, seed: int
) -> Callable[[], None]:
    """One step of a plain loop, on this node's own batches."""
    luck, train = np.random.default_rng((seed, rank)), text()[0]
    places = torch.arange(LENGTH + 1)[:, None]

    def step() -> None:
        window = train[torch.from_numpy(luck.integers(len(train) - LENGTH, size=batch)) + places]
        optimizer.zero_grad()
        loss(model, window).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def loss(model: nn.Module, window: Tensor) -> Tensor:
    """The mean over a window of (time, batch)."""
    return cross_entropy(model(window[:-1]).flatten(0, 1), window[1:].flatten())


@torch.no_grad()
def validation_loss(model: nn.Module) -> float:
    """On the same windows of unseen text every time."""
    unseen = text()[1]
    begins = torch.from_numpy(np.random.default_rng(0).integers(len(unseen) - LENGTH, size=_WINDOWS))
    return float(loss(model, unseen[begins + torch.arange(LENGTH + 1)[:, None]]))
