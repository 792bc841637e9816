"""One node of an elastic run, as one would write it: it trains until it is told at which step to end.

A step lasts as long as a GPU would take for it: what the computing leaves of that time, it sleeps.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import flockstep as fs
from benchmarks.elastic_faults.diary import Diary
from benchmarks.elastic_faults.task import Batches, build
from flockstep.strategy import Strategy

PERIOD = 16
STRATEGIES: dict[str, Strategy] = {
    "DiLoCo": fs.DiLoCo(period=PERIOD),
    "CELGC": fs.CELGC(period=PERIOD),
    "HPSGD": fs.HPSGD(period=PERIOD),
}


def main() -> None:
    """Train, and write a diary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--strategy", choices=STRATEGIES, required=True)
    parser.add_argument("--patience", type=float, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    options = parser.parse_args()
    diary = Diary(options.folder, fs.rank())
    # Nobody else is in the laboratory's network.
    warnings.filterwarnings("ignore", message="the mailbox listens on")
    torch.set_num_threads(1)
    train(options, diary)


def train(options: argparse.Namespace, diary: Diary) -> None:
    """From coming in to the end."""
    model, optimizer = build()
    batches, end = Batches(fs.rank(), os.getpid()), options.folder / "end"
    diary.write("joins")
    elastic = fs.Elastic(patience=options.patience)
    with fs.join(model, optimizer, STRATEGIES[options.strategy], elastic=elastic) as node:
        diary.write("is in", step=node.step_count)
        follow_rounds(node, diary)
        while not end.exists() or node.step_count < int(end.read_text()):
            began = time.monotonic()
            optimizer.zero_grad()
            batches.backward(model)
            time.sleep(max(0.0, began + options.step_seconds - time.monotonic()))
            optimizer.step()
            diary.write("step", step=node.step_count)
    state = model.state_dict()
    torch.save(state, options.folder / f"model-{node.rank}.pt")
    diary.write("end", **about(node, state))


def follow_rounds(node: Any, diary: Diary) -> None:
    """Write down every round of which this node gets the result."""
    assembly = node.fabric.assembly
    deliver = assembly.deliver

    def delivered(key: Any, attempt: Any, ranks: tuple[int, ...]) -> None:
        diary.write("round", channel=key.channel, round=key.round, among=ranks)
        deliver(key, attempt, ranks)

    assembly.deliver = delivered


def about(node: Any, state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What there is to say in the end."""
    report = node.report()
    return {
        "step": node.step_count,
        "counts": report.counts,
        "views": [[change.seconds, list(change.came), list(change.went)] for change in report.views],
        "checkpoint": sum(tensor.nbytes for tensor in node.state()[0].values()),
        "model": hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state.values())).hexdigest(),
    }


if __name__ == "__main__":
    main()
