"""What the simulator costs: a simulated node-step of LocalSGD against the same step in a bare Python loop.

Both sides run in turns in one process: the same shards of ``Quadratics``, the same optimizer class, the same number of
gradients from the same random streams. A ratio is the processor time of ``fs.simulate`` over that of the loop, whole
calls, nodes and optimizers made inside. Processor time, because others may use the machine, too, and of the one thread
that both run in: a threaded matrix library goes on spinning after the loss, into the turn of the other side.

The bars are for rounds of 10 steps, with and without a model of the hardware. Rounds of one step are told beside
them: they add a mean of all models to every step, which the loop never computes. So is a gradient without noise,
which costs next to nothing at 100,000 parameters and so shows what is left.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import flockstep as fs
from benchmarks.report import Progress, arguments, finish
from flockstep.node import stream
from flockstep.workloads.convex import Quadratics

RESULTS = Path(__file__).parent / "results"
SGD = partial(torch.optim.SGD, lr=0.01)
HARDWARE: dict[str, Any] = {
    "network": fs.Network(bandwidth="100 Mbit/s", latency="20 ms"),
    "compute": fs.Compute(step="50 ms", spread=0.3),
}
MOST = {64: 3.0, 100_000: 1.15}
BAR_PERIOD = 10


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison."""

    dim: int
    period: int
    hardware: bool
    noise: float = 1.0

    @property
    def counts(self) -> bool:
        """Whether a bar is set on it."""
        return self.period == BAR_PERIOD and self.noise > 0

    def __str__(self) -> str:
        extras = [*["hardware"] * self.hardware, *["no noise"] * (not self.noise)]
        return ", ".join([f"{self.dim:,} parameters", f"period {self.period}", *extras])


CASES = [Case(dim=d, period=p, hardware=h) for d in MOST for p in (1, BAR_PERIOD) for h in (False, True)]
CASES += [Case(dim=d, period=BAR_PERIOD, hardware=False, noise=0.0) for d in MOST]


class Prepared:
    """A workload whose shards exist already: what making them costs is neither side's."""

    def __init__(self, workload: Quadratics, size: int) -> None:
        self._shards = [workload.shard(rank, size) for rank in range(size)]
        for rank, shard in enumerate(self._shards):
            shard.gradient(shard.start(), stream(0, rank, "data"))
        self._shards[0].loss(workload.start())

    def start(self) -> Tensor:
        """Where training starts."""
        return self._shards[0].start()

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """The first node's gradient."""
        return self._shards[0].gradient(x, rng)

    def loss(self, x: Tensor) -> float:
        """The loss of the whole problem."""
        return self._shards[0].loss(x)

    def shard(self, rank: int, size: int) -> Quadratics:
        """The shard made before."""
        return self._shards[rank]


def bare(workload: Prepared, nodes: int, steps: int) -> None:
    """The yardstick: every node's gradient and optimizer step, and nothing else."""
    shards = [workload.shard(rank, nodes) for rank in range(nodes)]
    models = [shard.start() for shard in shards]
    optimizers = [SGD([x]) for x in models]
    streams = [stream(0, rank, "data") for rank in range(nodes)]
    for _ in range(steps):
        for shard, x, optimizer, rng in zip(shards, models, optimizers, streams, strict=True):
            x.grad = shard.gradient(x, rng)
            optimizer.step()
            x.grad = None


def simulated(workload: Prepared, nodes: int, steps: int, case: Case) -> None:
    """The same steps on virtual nodes; the loss is measured at the start and at the end only."""
    models = HARDWARE if case.hardware else {}
    strategy = fs.LocalSGD(period=case.period)
    fs.simulate(
        strategy, workload, nodes=nodes, steps=steps, optimizer=SGD, record_every=steps, engine="events", **models
    )


def seconds(call: Callable[[], None]) -> float:
    """Processor time of one call, in the thread that makes it."""
    began = time.thread_time()
    call()
    return time.thread_time() - began


def compare(case: Case, nodes: int, steps: int, repeats: int) -> dict[str, Any]:
    """Both sides in turns; one ratio per turn."""
    workload = Prepared(Quadratics(dim=case.dim, noise=case.noise), nodes)
    sides = partial(bare, workload, nodes, steps), partial(simulated, workload, nodes, steps, case)
    for side in sides:
        side()
    turns = [(seconds(sides[0]), seconds(sides[1])) for _ in range(repeats)]
    ratios = [simulator / loop for loop, simulator in turns]
    low, middle, high = statistics.quantiles(ratios, n=4)
    loop_us, simulator_us = (1e6 * statistics.median(side) / nodes / steps for side in zip(*turns, strict=True))
    return {
        "case": str(case),
        "ratio": round(middle, 3),
        "quartiles": f"{low:.3f} to {high:.3f}",
        "at most": MOST[case.dim] if case.counts else "",
        "loop us": round(loop_us, 1),
        "simulator us": round(simulator_us, 1),
        "turns": repeats,
    }


def crowd(nodes: int, steps: int) -> dict[str, Any]:
    """Many nodes on slow links: seconds by the clock on the wall."""
    began = time.perf_counter()
    trace = fs.simulate(
        fs.LocalSGD(period=10), Quadratics(), nodes=nodes, steps=steps, optimizer=SGD, engine="events", **HARDWARE
    )
    took = time.perf_counter() - began
    return {
        "case": f"{nodes:,} nodes x {steps} steps, 64 parameters, period 10, hardware",
        "seconds": round(took, 2),
        "node-steps/s": round(sum(node.steps for node in trace.nodes) / took),
    }


def main() -> None:
    """Compare, then run the crowd."""
    parser = arguments("benchmarks.simulator", __doc__ or "")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # The first optimizer imports torch's compiler, which takes seconds and is nobody's step.
    SGD([torch.zeros(1)])
    progress, rows = Progress(len(CASES) + 1), []
    for case in CASES:
        progress(str(case))
        steps, repeats = (200, 25) if case.dim == min(MOST) else (100, 15)
        rows.append(compare(case, 4, *((steps // 10, 3) if options.quick else (steps, repeats))))
    nodes = 32 if options.quick else 1024
    progress(f"{nodes} nodes")
    rows.append(crowd(nodes, 100))
    worst = {d: max(r["ratio"] for r, c in zip(rows, CASES, strict=False) if c.counts and c.dim == d) for d in MOST}
    met = {
        f"{dim:,} parameters: {worst[dim]} times the bare loop, at most {most}": worst[dim] <= most
        for dim, most in MOST.items()
    }
    met[f"{nodes:,} nodes x 100 steps finish, in {rows[-1]['seconds']} s"] = True
    figures = {f"ratio_{dim}": worst[dim] for dim in MOST} | {"seconds": rows[-1]["seconds"]}
    folder = options.out or (None if options.quick else RESULTS)
    finish("benchmarks.simulator", rows, figures=figures, met=met, folder=folder)


if __name__ == "__main__":
    main()
