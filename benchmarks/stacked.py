"""What a study of numbers costs: the stacked engine against the events engine, and against NumPy written by hand.

The task is SClip-EF on 20 nodes with rotated quadratics of 10 coordinates and noise of the paper's log-tail density.
By hand it is a loop over the same matrices, with the arithmetic in the fewest NumPy calls its author could find, and
the noise drawn for a thousand steps at once, as the stacked engine draws it. All run in turns in one process and one
thread; a figure is processor time per step of all nodes (and seeds), and a ratio is taken within a turn. The events
engine takes fewer steps, as its steps are so much longer; time per step does not change along a run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import flockstep as fs
from benchmarks.report import Progress, arguments, finish
from flockstep.workloads.noises import LogTail
from flockstep.workloads.noisy import Noisy
from flockstep.workloads.rotated import RotatedQuadratics

NAME = "benchmarks.stacked"
RESULTS = Path(__file__).parent / "results"
NODES, DIM, SEEDS = 20, 10, 64
C_PHI, TAU, C_BETA, C_ETA = 20.0, 100.0, 0.9, 1.0
QUADRATICS = RotatedQuadratics(dim=DIM)
PROBLEM = Noisy(workload=QUADRATICS, noise=LogTail())
STRATEGY = fs.SClipEF(clip=fs.clips.SmoothClip(c_phi=C_PHI, tau=TAU), c_beta=C_BETA)
LEAST_FASTER, MOST_ONE, MOST_MANY = 20.0, 4.0, 1.5
AHEAD = 1000


def by_hand(steps: int, seeds: int) -> NDArray[Any]:
    """SClip-EF as one would write it for this problem alone; the models at the end."""
    shards = [QUADRATICS.shard(rank, NODES) for rank in range(NODES)]
    hessians, pulls = np.stack([s.hessian for s in shards]), np.stack([s.pull for s in shards])
    rng, noise = np.random.default_rng(0), LogTail()
    x, m = np.zeros((seeds, NODES, DIM)), np.zeros((seeds, NODES, DIM))
    for begin in range(0, steps, ahead := max(1, AHEAD // seeds)):
        count = min(ahead, steps - begin)
        block = noise.draw(rng, count * seeds * NODES, DIM).reshape(count, seeds, NODES, DIM)
        for k in range(count):
            t = begin + k + 1
            beta, phi, eps, eta = C_BETA * t**-0.5, C_PHI * t**-0.5, TAU * t**0.6, C_ETA * t**-0.2
            y = (hessians @ x[..., None])[..., 0]
            y += block[k]
            y -= pulls
            y -= m
            root = y * y
            root += eps
            np.sqrt(root, out=root)
            y /= root
            y *= (1 - beta) * phi
            m *= beta
            m += y
            x = x - eta * m.mean(1, keepdims=True)
    return x


def simulated(engine: str, steps: int, seeds: int) -> None:
    """The same by the library; losses at the start and at the end only."""
    fs.simulate_seeds(
        STRATEGY,
        PROBLEM,
        seeds=range(seeds),
        nodes=NODES,
        steps=steps,
        optimizer=partial(torch.optim.SGD, lr=C_ETA),
        record_every=steps,
        engine=engine,
    )


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call, in the thread that makes it."""
    began = time.thread_time()
    call()
    return time.thread_time() - began


def measure(seeds: int, steps: dict[str, int], turns: int, progress: Progress) -> dict[str, list[float]]:
    """Microseconds per step, for each way and turn."""
    ways: dict[str, Callable[[int], object]] = {
        "events": lambda count: simulated("events", count, 1),
        "stacked": lambda count: simulated("stacked", count, seeds),
        "by hand": lambda count: by_hand(count, seeds),
    }
    took: dict[str, list[float]] = {way: [] for way in steps}
    for way in steps:
        ways[way](2)
    for turn in range(turns):
        for way, count in steps.items():
            progress(f"{seeds} seed(s), {way}, turn {turn + 1} of {turns}")
            took[way].append(1e6 * seconds(partial(ways[way], count)) / count)
    return took


def row(what: str, ratios: list[float], least: float | None = None, most: float | None = None) -> dict[str, Any]:
    """A ratio over all turns."""
    bar = f"at least {least:g}" if least else f"at most {most:g}"
    rounded = [float(f"{ratio:.3g}") for ratio in sorted(ratios)]
    return {"ratio": what, "median": statistics.median(rounded), "least": rounded[0], "most": rounded[-1], "bar": bar}


def main() -> None:
    """Measure, and say what was met."""
    options = arguments(NAME, __doc__ or "").parse_args()
    torch.set_num_threads(1)
    turns = 2 if options.quick else 5
    scale = 100 if options.quick else 1
    progress = Progress(turns * 5)
    one = measure(
        1, {"events": 2_000 // scale, "stacked": 100_000 // scale, "by hand": 100_000 // scale}, turns, progress
    )
    many = measure(SEEDS, {"stacked": 2_000 // scale, "by hand": 2_000 // scale}, turns, progress)

    def over(a: list[float], b: list[float]) -> list[float]:
        return [x / y for x, y in zip(a, b, strict=True)]

    faster = row("events / stacked, 1 seed", over(one["events"], one["stacked"]), least=LEAST_FASTER)
    alone = row("stacked / by hand, 1 seed", over(one["stacked"], one["by hand"]), most=MOST_ONE)
    together = row(f"stacked / by hand, {SEEDS} seeds", over(many["stacked"], many["by hand"]), most=MOST_MANY)
    costs = {
        f"{way}, {seeds} seed(s)": float(f"{statistics.median(took):.4g}")
        for seeds, table in ((1, one), (SEEDS, many))
        for way, took in table.items()
    }
    finish(
        NAME,
        [faster, alone, together],
        figures={"microseconds per step": costs},
        met={
            f"{faster['median']}x faster than events, at least {LEAST_FASTER:g}": faster["median"] >= LEAST_FASTER,
            f"{alone['median']}x the time by hand for one seed, at most {MOST_ONE:g}": alone["median"] <= MOST_ONE,
            f"{together['median']}x the time by hand for {SEEDS} seeds, at most {MOST_MANY:g}": together["median"]
            <= MOST_MANY,
        },
        folder=options.out or (None if options.quick else RESULTS),
    )


if __name__ == "__main__":
    main()
