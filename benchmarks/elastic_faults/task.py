"""What is trained: the next character of the embedded text from the sixteen before it; about a million parameters."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flockstep.workloads.datasets import shakespeare

BEFORE, EMBEDDING, HIDDEN = 16, 32, (1024, 384)
BATCH, RATE = 16, 1e-3
_HELD_BACK, _WINDOWS = 0.1, 4096


@cache
def text() -> tuple[Tensor, Tensor, int]:
    """Characters to train on, characters to validate on, and how many different ones there are."""
    letters = sorted(set(shakespeare()))
    numbers = {letter: number for number, letter in enumerate(letters)}
    whole = torch.tensor([numbers[letter] for letter in shakespeare()])
    cut = round((1 - _HELD_BACK) * len(whole))
    return whole[:cut], whole[cut:], len(letters)


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same on every node."""
    torch.manual_seed(0)
    letters = text()[2]
    model = nn.Sequential(
        nn.Embedding(letters, EMBEDDING),
        nn.Flatten(),
        nn.Linear(BEFORE * EMBEDDING, HIDDEN[0]),
        nn.GELU(),
        nn.Linear(HIDDEN[0], HIDDEN[1]),
        nn.GELU(),
        nn.Linear(HIDDEN[1], letters),
    )
    return model, torch.optim.Adam(model.parameters(), lr=RATE)


class Batches:
    """One node's own; those of its next life are others."""

    def __init__(self, *seed: int) -> None:
        self._luck = np.random.default_rng(seed)

    def backward(self, model: nn.Module) -> None:
        """The gradient of the next batch."""
        loss(model, text()[0], torch.from_numpy(self._luck.integers(len(text()[0]) - BEFORE, size=BATCH))).backward()  # type: ignore[no-untyped-call]


def loss(model: nn.Module, letters: Tensor, begins: Tensor) -> Tensor:
    """The mean over windows that begin there."""
    windows = letters[begins[:, None] + torch.arange(BEFORE + 1)]
    return cross_entropy(model(windows[:, :-1]), windows[:, -1])


@torch.no_grad()
def validation_loss(states: list[dict[str, Tensor]]) -> float:
    """That of the nodes' average model, on the same windows of unseen text every time."""
    model, unseen = build()[0], text()[1]
    model.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
    begins = torch.from_numpy(np.random.default_rng(0).integers(len(unseen) - BEFORE, size=_WINDOWS))
    return float(loss(model, unseen, begins))
