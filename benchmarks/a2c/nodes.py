"""How much faster are two HSA2C workers than one, over links of 100 Mbit/s, and what does the death of one cost?

A server and one or two workers, each a process in a network namespace of its own whose link is limited both ways; each
worker has one thread and a core, and pushes what 100 updates have changed. Compared are the workers' steps per second
together, in alternating turns. Then, on processes of this machine, one of two workers kills itself (kill -9) in its
tenth burst: the other takes the rest of a million steps, and the server's model is evaluated over 100 episodes. Needs
Linux, root, and the commands ip and tc for the first part; nothing else should run meanwhile.

Bars: two workers 1.8 times as fast as one; a mean return of 475 in spite of the death.
"""

from __future__ import annotations

import os
import signal
import statistics
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

import flockstep as fs
from benchmarks.a2c.node import STRATEGY, workload
from benchmarks.report import Progress, arguments, finish
from benchmarks.slowlink.crew import run_everywhere
from flockstep.compare.lab.commands import Missing
from flockstep.compare.lab.lab import Lab
from flockstep.rl.nodes.node_workload import ARRIVE, ActorCriticBursts

NAME = "benchmarks.a2c.nodes"
RESULTS = Path(__file__).parents[1] / "results"
RATE, UPDATES = "100 Mbit/s", 100
LEAST_GAIN, LEAST_RETURN = 1.8, 475


class Mortal(ActorCriticBursts):
    """Node 2 dies without a word in its tenth burst."""

    rank = bursts = 0

    def shard(self, rank: int, size: int) -> Self:
        """Each knows who it is."""
        twin = super().shard(rank, size)
        twin.rank, twin.bursts = rank, 0
        return twin

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Unless it is time to die."""
        self.bursts += 1
        if self.rank == 2 and self.bursts == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().gradient(x, rng)


def main() -> None:
    """Measure, and say what was met."""
    options = arguments(NAME, __doc__ or "").parse_args()
    torch.set_num_threads(1)
    turns, bursts, seeds = (1, 20, [0]) if options.quick else (5, 800, [0, 1, 2])
    timesteps = 50_000 if options.quick else 1_000_000
    progress = Progress(2 * turns + len(seeds))
    told: list[dict[str, Any]] = []
    try:
        for turn in range(turns):
            for workers in (1, 2):
                progress(f"{workers} worker(s) over {RATE}, turn {turn + 1}")
                told.append({"turn": turn, **_speed(workers, bursts)})
    except Missing as missing:
        print(f"no slow links here: {missing}")
    for seed in seeds:
        progress(f"a worker dies, seed {seed}")
        told.append({"way": "2 workers, one killed", "seed": seed, **_death(timesteps, seed)})
    figures = _figures(told)
    finish(
        "benchmarks.a2c_nodes",
        told,
        figures=figures,
        met=_bars(figures),
        folder=options.out or (None if options.quick else RESULTS),
    )


def _speed(workers: int, bursts: int) -> dict[str, Any]:
    with Lab(nodes=workers + 1, rate=RATE) as lab:
        words = ("--bursts", str(bursts), "--updates", str(UPDATES))
        said = run_everywhere(lab, "benchmarks.a2c.node", *words, timeout=300.0)
    busy = [node for node in said if node["rank"]]
    return {
        "way": f"{workers} worker(s), {RATE}",
        "steps/s": round(sum(node["steps_per_second"] for node in busy)),
        "alone steps/s": round(sum(node["alone"] for node in busy)),
    }


def _death(timesteps: int, seed: int) -> dict[str, Any]:
    plain = workload(25, seed)
    mortal = Mortal(env=plain.source, settings=plain.settings, episodes=100, seed=seed)
    budget = fs.Budget(steps=-(-timesteps // plain.timesteps))
    trace = fs.launch(STRATEGY, mortal, nodes=3, steps=budget, optimizer=ARRIVE, seed=seed, timeout=60.0)
    return {
        "mean return": round(-plain.loss(trace.models[0]), 1),
        "bursts of the other": trace.nodes[1].gradients,
        "seconds": round(trace.seconds, 2),
    }


def _figures(told: list[dict[str, Any]]) -> dict[str, Any]:
    speeds = {w: [row["steps/s"] for row in told if row["way"].startswith(f"{w} worker(s)")] for w in (1, 2)}
    gains = [two / one for one, two in zip(speeds[1], speeds[2], strict=True)]
    return {
        "steps_per_second": {w: statistics.median(seen) for w, seen in speeds.items() if seen},
        "two_workers_over_one": round(statistics.median(gains), 2) if gains else None,
        "mean_returns_after_a_death": [row["mean return"] for row in told if "mean return" in row],
    }


def _bars(figures: dict[str, Any]) -> dict[str, bool]:
    gain, returns = figures["two_workers_over_one"], figures["mean_returns_after_a_death"]
    met = {f"mean returns after a death {returns}, at least {LEAST_RETURN}": min(returns) >= LEAST_RETURN}
    if gain is not None:
        met[f"two workers {gain} times as fast as one over {RATE}, at least {LEAST_GAIN}"] = gain >= LEAST_GAIN
    return met


if __name__ == "__main__":
    main()
