"""Pong on a GPU and the cores of its machine: how many steps a second does HSA2C take while it trains?

The Nature network, roll-outs of 5 steps, workers that take turns on the GPU while their games are emulated; several
ways to divide 128 games, five turns each. Needs a GPU, ale-py and gymnasium; takes 3 minutes, a third of it for the
emulators to begin.

Bar: 15,000 steps/s on 16 cores.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch

from benchmarks.report import Progress, arguments, finish
from flockstep.cores import cores
from flockstep.rl.hsa2c import HSA2C

NAME = "benchmarks.a2c.pong_gpu"
RESULTS = Path(__file__).parent.parent / "results"
LEAST, CORES = 15_000, 16
WAYS = ((4, 32), (5, 26), (8, 16))
"""Workers, and games of each."""


def rates(workers: int, games: int, turns: int, seconds: float, progress: Progress) -> list[float]:
    """Steps per second of each turn; what comes first makes the games and is not counted."""
    model = HSA2C("CnnPolicy", "ALE/Pong-v5", threads=workers, envs_per_thread=games, device="cuda", seed=0)
    found = []
    try:
        for turn in range(turns + 1):
            progress(f"{workers} workers of {games} games, " + (f"turn {turn} of {turns}" if turn else "beginning"))
            found.append(rate(model, seconds if turn else 2.0))
    finally:
        model.close()
    return found[1:]


def rate(model: HSA2C, seconds: float) -> float:
    """Steps per second, from the first order to the last update."""
    began, before = time.perf_counter(), model.num_timesteps
    model.learn(10**9, lambda row: time.perf_counter() < began + seconds, reset_num_timesteps=False)
    return (model.num_timesteps - before) / (time.perf_counter() - began)


def main() -> None:
    """Measure, and say what was met."""
    options = arguments(NAME, __doc__ or "").parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU that torch can use")
    torch.set_num_threads(1)
    ways = WAYS[:1] if options.quick else WAYS
    turns, seconds = (1, 3.0) if options.quick else (5, 5.0)
    progress = Progress(len(ways) * (turns + 1))
    rows = []
    for workers, games in ways:
        found = rates(workers, games, turns, seconds, progress)
        rows.append(
            {
                "workers": workers,
                "games each": games,
                "steps/s": round(statistics.median(found)),
                "least": round(min(found)),
                "most": round(max(found)),
            }
        )
    best = max(row["steps/s"] for row in rows)
    bar = f"{best:,} steps/s with {cores()} cores, at least {LEAST:,} with {CORES}"
    finish(
        NAME,
        rows,
        figures={"steps/s": best, "cores": cores()},
        met={bar: best >= LEAST},
        folder=options.out or (None if options.quick else RESULTS),
    )


if __name__ == "__main__":
    main()
