"""One worker of torch elastic, as its documentation has it: local SGD by hand, a snapshot every so often.

When one dies, all are started again, and go on from the snapshot. All see one folder, as they often do not.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.elastic_faults.diary import Diary
from benchmarks.elastic_faults.node import PERIOD
from benchmarks.elastic_faults.task import Batches, build

dist: Any = torch.distributed
NODE = "ELASTIC_FAULTS_NODE"


def main() -> None:
    """Train, and write a diary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    parser.add_argument("--rounds-between-snapshots", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    diary = Diary(options.folder, int(os.environ[NODE]))
    diary.write("joins")
    dist.init_process_group("gloo")
    try:
        train(options, diary)
    finally:
        dist.destroy_process_group()


def train(options: argparse.Namespace, diary: Diary) -> None:
    """From the newest snapshot to the end."""
    model, optimizer = build()
    snapshot, end, step = options.folder / "snapshot.pt", options.folder / "end", 0
    if snapshot.exists():
        kept = torch.load(snapshot)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    diary.write("is in", step=step)
    batches = Batches(dist.get_rank(), os.getpid())
    while not end.exists() or step < int(end.read_text()):
        began = time.monotonic()
        optimizer.zero_grad()
        batches.backward(model)
        time.sleep(max(0.0, began + options.step_seconds - time.monotonic()))
        optimizer.step()
        step += 1
        if step % PERIOD == 0:
            average(model)
            diary.write("round", round=step // PERIOD)
        diary.write("step", step=step)
        if step % (PERIOD * options.rounds_between_snapshots) == 0 and dist.get_rank() == 0:
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(kept, snapshot.with_suffix(".new"))
            snapshot.with_suffix(".new").rename(snapshot)
    diary.write("end", step=step)


@torch.no_grad()
def average(model: torch.nn.Module) -> None:
    """Over all workers: one vector, in one piece."""
    flat = torch.cat([p.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    begin = 0
    for p in model.parameters():
        p.copy_(flat[begin : begin + p.numel()].view_as(p))
        begin += p.numel()


if __name__ == "__main__":
    main()
