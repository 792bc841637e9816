"""One node of the race: each runner trains from the start, and leaves its model behind now and then, with the time.

Nobody stops to be validated: models are put aside as they are, and judged when all have run.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.race.runners import ALONE, RUNNERS
from benchmarks.race.task import build, stepper
from benchmarks.slowlink.place import take_place

dist: Any = torch.distributed


def main() -> None:
    """Every runner, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("hidden", "batch", "steps", "every", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="learning rate")
    parser.add_argument("--folder", type=Path, required=True, help="where models are left")
    parser.add_argument("--runners", nargs="+", choices=RUNNERS, required=True)
    options = parser.parse_args()
    rank = take_place()
    dist.init_process_group("gloo")
    try:
        times = {name: run(name, options, rank) for name in options.runners}
    finally:
        # What holds the group must be gone before it: a group that dies with a DDP model can hang (torch 2.13).
        gc.collect()
        dist.destroy_process_group()
    print(json.dumps(times))


def run(name: str, options: argparse.Namespace, rank: int) -> list[float]:
    """Train from the start; the seconds at which models were put aside."""
    model, optimizer = build(options.hidden, options.rate, options.seed)
    kept: list[tuple[float, dict[str, torch.Tensor]]] = []
    with ExitStack() as stack:
        wrapped = RUNNERS[name](stack, model, optimizer)
        step = stepper(wrapped, optimizer, batch=options.batch, rank=rank, seed=options.seed)
        gc.collect()
        dist.barrier()
        began = time.perf_counter()
        for k in range(1, options.steps + 1):
            step()
            if k % options.every == 0:
                now = time.perf_counter() - began
                kept.append((now, {key: value.detach().clone() for key, value in model.state_dict().items()}))
            if rank == 0 and k % (options.steps // 4) == 0:
                print(f"{name}: step {k} of {options.steps}", file=sys.stderr, flush=True)
    if name != ALONE:
        for number, (_, weights) in enumerate(kept):
            save_file(weights, options.folder / f"{list(RUNNERS).index(name)}-{number}-{rank}.safetensors")
    return [seconds for seconds, _ in kept]


if __name__ == "__main__":
    main()
