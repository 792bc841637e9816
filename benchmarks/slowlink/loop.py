"""The training loop that every row runs: a character LSTM on random text, plain SGD. Only speed is looked at."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flockstep.workloads.language import RecurrentModel

VOCABULARY, EMBEDDING, LENGTH = 100, 128, 32
Step = Callable[[], None]


def build(hidden: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same model on every node, and its optimizer."""
    torch.manual_seed(0)
    model = RecurrentModel(vocabulary=VOCABULARY, embedding=EMBEDDING, hidden=hidden, layers=1, tied=False)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def parameters(hidden: int) -> int:
    """How many numbers the model has."""
    return sum(parameter.numel() for parameter in build(hidden)[0].parameters())


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int, length: int = LENGTH) -> Step:
    """One iteration of the loop, as anybody would write it."""
    text = torch.randint(VOCABULARY, (length + 1, batch), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        optimizer.zero_grad()
        logits = model(text[:-1])
        cross_entropy(logits.flatten(0, 1), text[1:].flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def seconds_per_step(step: Step, steps: int) -> float:
    """How long one takes, on average."""
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - began) / steps
