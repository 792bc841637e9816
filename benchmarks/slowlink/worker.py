"""One node of the comparison, as torch.distributed runs it: finds the batch, then takes the rows in turns.

All contenders are open at once, each with a model and connections of its own, so that nothing is set up while the
clock runs, and rounds can alternate between them.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from contextlib import ExitStack
from typing import Any

import torch

from benchmarks.slowlink.contenders import ALONE, CONTENDERS, PERIOD, Size
from benchmarks.slowlink.loop import Step, build, parameters, seconds_per_step, stepper
from benchmarks.slowlink.place import take_place

dist: Any = torch.distributed
# How long the link needs for a gradient, in bare steps. DDP, which hides little of it here, keeps about 1 / (1 + this).
_TALK_PER_COMPUTE = 1.35
_STEPS_AT_A_TIME, _BARE_STEPS = 8, 4
# Between two contenders, so that what one has under way in the background has landed when the next begins.
_PAUSE = 0.4
_FIRST_TRIED, _TRIES, _LARGEST = 32, 4, 1024


def main() -> None:
    """Calibrate, warm up, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes-per-second", type=float, required=True, help="what the link gives")
    parser.add_argument("--hidden", type=int, required=True, help="width of the LSTM")
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    rank = take_place()
    dist.init_process_group("gloo")
    try:
        size = Size(hidden=options.hidden, batch=_find_batch(options.hidden, options.bytes_per_second))
        seconds = _measure(size, options.rounds, rank)
    finally:
        # What holds the group must be gone before it: a group that dies with a DDP model can hang (torch 2.13).
        gc.collect()
        dist.destroy_process_group()
    print(json.dumps({"batch": size.batch, "parameters": parameters(size.hidden), "seconds": seconds}))


def _find_batch(hidden: int, bytes_per_second: float) -> int:
    """The batch whose step takes as long as the link needs for the gradient, divided by the ratio above."""
    n = dist.get_world_size()
    wanted = 2 * (n - 1) / n * 4 * parameters(hidden) / bytes_per_second / _TALK_PER_COMPUTE
    batch = _FIRST_TRIED
    for _ in range(_TRIES):
        step = stepper(*build(hidden), batch)
        step()
        took = statistics.median(_slowest(step, steps=3) for _ in range(3))
        # A step has a part that does not grow with the batch, so that one look is not enough.
        batch = min(_LARGEST, max(1, round(batch * min(3.0, max(1 / 3, wanted / took)))))
    return batch


def _measure(size: Size, rounds: int, rank: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds per step of each contender and of the bare loop beside it, once per round of PERIOD steps."""
    with ExitStack() as stack:
        steps = {name: open_row(stack, size) for name, open_row in CONTENDERS.items()}
        for name, step in steps.items():
            _say(rank, f"warming up {name}, batch {size.batch}")
            _slowest(step, PERIOD)
        alone = steps.pop(ALONE)
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
        for number in range(rounds):
            _say(rank, f"round {number + 1} of {rounds}")
            for name, took in _round(steps, alone, number).items():
                measured[name].append(took)
    return measured


def _round(steps: dict[str, Step], alone: Step, number: int) -> dict[str, tuple[float, float]]:
    """A period of every contender, a few steps at a time: its seconds per step, and the bare loop's just before it.

    Whatever else the machine does meets a contender and its bare loop alike, as they are a second apart.
    """
    both = torch.zeros(len(steps), 2, dtype=torch.float64)
    order = list(enumerate(steps.values()))
    share = _STEPS_AT_A_TIME / PERIOD
    for turn in range(PERIOD // _STEPS_AT_A_TIME):
        # Another order each time, so that nobody always follows the same one.
        first = (3 * number + turn) % len(order)
        for place, step in order[first:] + order[:first]:
            time.sleep(_PAUSE)
            for column, (loop, count) in enumerate(((alone, _BARE_STEPS), (step, _STEPS_AT_A_TIME))):
                gc.collect()
                dist.barrier()
                both[place, column] += share * seconds_per_step(loop, count)
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return {name: (mine, bare) for name, (bare, mine) in zip(steps, both.tolist(), strict=True)}


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
