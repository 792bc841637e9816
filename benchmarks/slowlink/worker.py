"""One node of the comparison, as torch.distributed runs it: finds the batch, then takes the rows in turns.

All contenders are open at once, each with a model and connections of its own, so that nothing is set up while the
clock runs, and rounds can alternate between them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from contextlib import ExitStack
from typing import Any

import torch

from benchmarks.slowlink.contenders import CONTENDERS, PERIOD
from benchmarks.slowlink.loop import Step, build, parameters, seconds_per_step, stepper

dist: Any = torch.distributed
# Of the time of a bare step, so much goes over the link: DDP, which hides little of it here, keeps about 1 / (1 + this).
_TALK_PER_COMPUTE = 1.35
_TRIED = (8, 24)


def main() -> None:
    """Calibrate, warm up, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes-per-second", type=float, required=True, help="what the link gives")
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        batch = _find_batch(options.bytes_per_second)
        told = {"batch": batch, "parameters": parameters(), "seconds": _measure(batch, options.rounds, rank)}
    finally:
        dist.destroy_process_group()
    print(json.dumps(told))


def _find_batch(bytes_per_second: float) -> int:
    """The batch whose step takes as long as the link needs for the gradient, divided by the ratio above."""
    small, large = (_slowest(stepper(*build(), batch), steps=10) for batch in _TRIED)
    per_sequence = max(1e-6, (large - small) / (_TRIED[1] - _TRIED[0]))
    n = dist.get_world_size()
    talk = 2 * (n - 1) / n * 4 * parameters() / bytes_per_second
    wanted = _TRIED[0] + (talk / _TALK_PER_COMPUTE - small) / per_sequence
    return max(2, round(wanted))


def _measure(batch: int, rounds: int, rank: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with ExitStack() as stack:
        steps = {name: open_row(stack, batch) for name, open_row in CONTENDERS.items()}
        for name, step in steps.items():
            _say(rank, f"warming up {name}, batch {batch}")
            _slowest(step, PERIOD)
        for turn in range(rounds):
            _say(rank, f"round {turn + 1} of {rounds}")
            names = list(steps)
            # Another order each time, so that nobody always follows the same one.
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                seconds[name].append(_slowest(steps[name], PERIOD))
    return seconds


def _slowest(step: Step, steps: int) -> float:
    """Seconds per step of the slowest node, all having begun together."""
    gc.collect()
    dist.barrier()
    mine = torch.tensor([seconds_per_step(step, steps)], dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return float(mine)


def _say(rank: int, what: str) -> None:
    if rank == 0:
        print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
