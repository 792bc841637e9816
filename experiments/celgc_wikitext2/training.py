"""One run, and many side by side in processes of their own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, partial
from queue import Queue
from typing import Any

import torch

import flockstep as fs
from experiments.celgc_wikitext2.schedule import decaying_sgd
from experiments.celgc_wikitext2.settings import CLIP_AT, METHODS, NODES, TRAINING_TOKENS, Size
from flockstep.backends.real.launch.child_processes import context
from flockstep.workloads.language import WordLSTM

Figures = dict[str, Any]

# exp() of more than this does not fit into a float; a model that far off has diverged anyway.
_LARGEST_LOSS = 700.0


@dataclass(frozen=True)
class Job:
    """One method at one learning rate."""

    size: Size
    method: str
    rate: float

    def __str__(self) -> str:
        return f"{self.method}, rate {self.rate:g}"

    @property
    def gamma(self) -> float:
        """The cap on the length of a step."""
        return CLIP_AT * self.rate


def jobs(size: Size) -> list[Job]:
    """The whole grid, rate by rate, so that methods can be compared even if time runs out."""
    return [Job(size, method, rate) for rate in size.rates for method in METHODS]


def run_all(grid: Sequence[Job], workers: int, on_point: Callable[[Figures], None]) -> Iterator[Figures]:
    """Run jobs in processes; points of the curves go to ``on_point`` as they come, results are yielded."""
    # Forked from a process that has only imported torch: the CUDA and the threads of this one would not survive it.
    forking = context()
    with forking.Manager() as manager, ProcessPoolExecutor(workers, forking, _prepare, (grid[0].size,)) as pool:
        points: Queue[Figures] = manager.Queue()
        running: set[Future[Figures]] = {pool.submit(run, job, points) for job in grid}
        while running:
            done, running = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            while not points.empty():
                on_point(points.get())
            for future in done:
                yield future.result()


def run(job: Job, points: Queue[Figures]) -> Figures:
    """Train one method at one rate."""
    size, began = job.size, time.monotonic()
    workload = _workload(size, size.curve_windows)
    places = {"method": job.method, "rate": job.rate}
    try:
        trace = fs.simulate(
            METHODS[job.method](job.gamma),
            workload,
            nodes=NODES,
            steps=size.steps,
            optimizer=partial(decaying_sgd, rate=job.rate, steps=size.steps, decay=size.decay),
            network=size.network,
            compute=fs.Compute(step=size.gradient_time),
            record_every=size.record_every,
            seed=size.seed,
            on_row=lambda row: points.put({**places, **_point(row, size)}),
        )
    except fs.Diverged as error:
        return {**places, "gamma": job.gamma, "perplexity": math.inf, "note": str(error)}
    final = _workload(size, size.final_windows)
    return {
        **places,
        "gamma": job.gamma,
        "perplexity": _perplexity(final.loss(trace.model)),
        **_costs(trace, size),
        "wall_s": round(time.monotonic() - began, 1),
    }


def _costs(trace: fs.Trace, size: Size) -> Figures:
    clipped = sum(node.counts.get("clipped", 0) for node in trace.nodes)
    norm = float(torch.linalg.vector_norm(trace.model))
    spread = max(row.spread for row in trace.rows) ** 0.5
    return {
        "bytes_per_node": trace.bytes_sent,
        "clipped_share": clipped / (NODES * size.steps),
        "skipped": sum(node.skipped for node in trace.nodes),
        "largest_spread": spread,
        "spread_share_of_norm": spread / norm,
        "virtual_s": trace.seconds,
        "computing_share": trace.busy,
        "steps": size.steps,
        "epochs": size.epochs,
        "parameters": trace.model.numel(),
    }


def _point(row: fs.Row, size: Size) -> Figures:
    return {
        "step": row.step,
        "epochs": row.step * size.tokens_per_step / TRAINING_TOKENS,
        "bytes_per_node": row.bytes,
        "virtual_s": row.seconds,
        "perplexity": _perplexity(row.loss),
        "spread": row.spread**0.5,
    }


def _perplexity(loss: float) -> float:
    return math.exp(min(loss, _LARGEST_LOSS)) if math.isfinite(loss) else math.inf


def _prepare(size: Size) -> None:
    torch.set_num_threads(1)
    if size.tf32:
        torch.set_float32_matmul_precision("high")


def _workload(size: Size, windows: int) -> WordLSTM:
    return _build(tuple(sorted(size.model.items())), windows, size.seed, size.device)


@cache
def _build(model: tuple[tuple[str, Any], ...], windows: int, seed: int, device: str) -> WordLSTM:
    arguments: Mapping[str, Any] = dict(model)
    return WordLSTM(**arguments, validation_windows=windows, seed=seed, device=device)
