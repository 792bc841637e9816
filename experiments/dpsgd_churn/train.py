"""One node: a character LSTM in a plain loop, until all nodes together have spent the budget.

    python -m experiments.dpsgd_churn.train --budget 2000 --seed 0

Says which process it is, and how far all are as it goes; node 0 ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flockstep as fs
from flockstep.workloads.datasets import shakespeare
from flockstep.workloads.language import RecurrentModel

BATCH, LENGTH, HIDDEN, RATE = 8, 32, 128, 0.5
# Until it is back, a server may be away for as long as it takes to start Python.
STRATEGY = fs.DPSGD(period=4, server_lr=1.0, max_steps_in_flight=16, patience=100_000)


class Windows:
    """Random windows of a text, (time, batch), for ever."""

    def __init__(self, text: Tensor, seed: int, rank: int) -> None:
        self._text, self._rng = text, np.random.default_rng((seed, rank))

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            starts = self._rng.integers(len(self._text) - LENGTH, size=BATCH)
            yield self._text[torch.from_numpy(starts + np.arange(LENGTH + 1)[:, None])]


def loss_of(model: nn.Module, windows: Tensor) -> Tensor:
    """Mean cross-entropy per character, in nats."""
    return cross_entropy(model(windows[:-1]).flatten(0, 1), windows[1:].flatten())


def main() -> None:
    """Train until the budget is spent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, required=True, help="steps of all nodes together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--after", type=Path, help="a pipe: join when somebody has written to it")
    options = parser.parse_args()
    print(f"process {os.getpid()}", flush=True)
    if options.after is not None:
        options.after.read_bytes()
    # Nobody else is in the laboratory's network.
    warnings.filterwarnings("ignore", message="the mailbox listens on")
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    characters, numbers = np.unique(np.array(list(shakespeare())), return_inverse=True)
    text = torch.from_numpy(numbers)
    train, validation = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    model = RecurrentModel(vocabulary=len(characters), embedding=32, hidden=HIDDEN, layers=1, tied=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    # Down to nothing by what all have done together: then the last loss is not that of the last few steps.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, fs.progress(lambda done: 1 - done))
    with fs.join(model, optimizer, STRATEGY, budget=fs.Budget(steps=options.budget)) as node:
        for windows in node.batches(Windows(train, options.seed, node.rank)):
            optimizer.zero_grad()
            loss_of(model, windows).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            print(f"progress {node.progress:.3f}", flush=True)
        node.meet()
        average = node.average_model() if node.rank == 0 else model
        report = node.report()
    if node.rank == 0:
        starts = np.linspace(0, len(validation) - LENGTH - 2, 256).astype(int)
        unseen = validation[torch.from_numpy(starts + np.arange(LENGTH + 1)[:, None])]
        with torch.no_grad():
            loss = float(loss_of(average, unseen))
        print(json.dumps({"loss": loss, "counts": report.counts, "steps": report.steps}), flush=True)


if __name__ == "__main__":
    main()
