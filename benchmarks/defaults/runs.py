"""One run: a plain loop on virtual nodes, under one strategy with its defaults."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import flockstep as fs
from benchmarks.defaults.tasks import TASKS, Task
from flockstep.strategy import Strategy, describe
from flockstep.trace import average_and_spread

PERIOD = 16
ALONE, TOGETHER = "alone", "DataParallel()"
STRATEGIES: dict[str, Strategy] = {
    describe(strategy): strategy
    for strategy in (
        fs.LocalSGD(period=PERIOD),
        fs.CELGC(period=PERIOD),
        fs.CELGCUpdate(period=PERIOD, gamma=1.0),
        fs.Episode(period=PERIOD),
        fs.EpisodePlus(period=PERIOD),
        fs.CoCoD(period=PERIOD),
        fs.OverlapLocalSGD(period=PERIOD),
        fs.HPSGD(),
        fs.DiLoCo(period=PERIOD),
        fs.EagerDiLoCo(period=PERIOD),
        fs.StreamingDiLoCo(period=PERIOD),
        fs.NoLoCo(period=PERIOD),
        fs.Swarm(period=PERIOD),
        fs.SwarmPull(period=PERIOD),
        fs.SwarmPairs(period=PERIOD),
        fs.DPSGD(period=PERIOD),
        fs.ADPSGD(),
        fs.Gossip(),
        fs.Choco(),
        fs.SGP(),
        fs.SClipEF(),
        fs.SClipEFNetwork(),
        fs.GTNSGDm(),
    )
}
NETWORK = fs.Network(bandwidth="100 Mbit/s", latency="5 ms")
COMPUTE = fs.Compute(step="20 ms", spread=0.1)


@dataclass(frozen=True)
class Job:
    """What is to be run; the rate is ``factor`` times the task's."""

    task: str
    strategy: str
    nodes: int
    seed: int
    steps: int
    factor: float = 1.0


def run(job: Job) -> dict[str, Any]:
    """What came of it: losses of the average of all final models and of the worst, on unseen data."""
    return run_with(job, fs.DataParallel() if job.strategy in (ALONE, TOGETHER) else STRATEGIES[job.strategy])


def run_with(job: Job, strategy: Strategy) -> dict[str, Any]:
    """The same with a strategy of one's own."""
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = fs.simulate(
                lambda: _train(job, strategy),
                nodes=job.nodes,
                network=NETWORK,
                compute=COMPUTE,
                seed=job.seed,
                timeout="600 s",
            )
    except Exception as error:
        # A strategy that cannot be used with nothing but its defaults is a result, too.
        lost = dict.fromkeys(("loss", "worst", "spread", "kB"), math.nan)
        return {**_place(job), **lost, "failed": repr(error)[:200]}
    return came_of(job, [trace.results[rank] for rank in sorted(trace.results)], trace.bytes_sent)


def _place(job: Job) -> dict[str, Any]:
    return {"task": job.task, "strategy": job.strategy, "nodes": job.nodes, "seed": job.seed, "factor": job.factor}


def came_of(job: Job, ends: Sequence[dict[str, Tensor]], bytes_sent: float) -> dict[str, Any]:
    """A row: what the models that nodes end with are worth."""
    task = TASKS[job.task]
    vectors = [torch.cat([value.flatten().double() for value in end.values()]) for end in ends]
    average, spread = average_and_spread(vectors)
    model = task.model()
    model.load_state_dict(dict(zip(ends[0], _parts(average, ends[0]), strict=True)))
    return {
        **_place(job),
        "loss": round(task.tested(model), 5),
        "worst": round(max(_own(task, end) for end in ends), 5),
        "spread": float(f"{spread:.4g}"),
        "kB": round(bytes_sent / 1e3, 1),
        "failed": "",
    }


def _parts(vector: Tensor, like: dict[str, Tensor]) -> list[Tensor]:
    parts = vector.split([value.numel() for value in like.values()])  # type: ignore[no-untyped-call]
    return [part.view(value.shape).to(value.dtype) for part, value in zip(parts, like.values(), strict=True)]


def _own(task: Task, end: dict[str, Tensor]) -> float:
    model = task.model()
    model.load_state_dict(end)
    return task.tested(model)


def begun(job: Job) -> tuple[nn.Module, torch.optim.Optimizer, LambdaLR]:
    """A node's model, the optimizer and the schedule of its rate."""
    task = TASKS[job.task]
    torch.manual_seed(job.seed)
    model = task.model()
    optimizer = task.optimizer(model.parameters(), lr=job.factor * task.rate)
    return model, optimizer, LambdaLR(optimizer, lambda k: task.factor(k / job.steps))


def gradients(job: Job, model: nn.Module, rng: np.random.Generator) -> None:
    """Of the node's next batch, into the model's parameters."""
    task = TASKS[job.task]
    model.zero_grad()
    task.loss(model, task.draw(task.batch, rng, False)).backward()  # type: ignore[no-untyped-call]
    if task.clip < math.inf:
        nn.utils.clip_grad_norm_(model.parameters(), task.clip)


def _train(job: Job, strategy: Strategy) -> dict[str, Tensor]:
    """The loop of one node; the model it holds at the end, as one would save it."""
    model, optimizer, schedule = begun(job)
    rng = np.random.default_rng((job.seed, fs.rank()))
    with fs.join(model, optimizer, strategy):
        for _ in range(job.steps):
            gradients(job, model, rng)
            optimizer.step()
            schedule.step()
    return {name: value.clone() for name, value in model.state_dict().items()}
