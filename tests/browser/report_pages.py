"""Reports to look at: small comparisons, really simulated, and one with far more spans than pixels, made up."""

from functools import partial

import numpy as np
import torch

import flockstep as fs
from flockstep.compare.folder import Outcome, Record, Results
from flockstep.compare.report.figures import summaries
from flockstep.compare.report.page import page
from flockstep.strategy import describe
from flockstep.timeline import KINDS, Timeline
from flockstep.trace import NodeReport, Row, Trace
from flockstep.workloads.convex import Quadratics

STRATEGIES = (fs.DataParallel(), fs.LocalSGD(period=4), fs.Swarm(period=2))
NODES, SEEDS, STEPS = 16, (0, 1), 120


def record(strategies, labels, seeds=SEEDS, nodes=NODES):
    cluster = {"nodes": nodes, "link": "100 Mbit/s", "latency": "2 ms", "step": "50 ms", "stragglers": ["3:4x"]}
    return Record(
        command="flockstep compare",
        versions={"flockstep": fs.__version__},
        workload="quadratics",
        cluster=cluster,
        strategies=list(strategies),
        labels=list(labels),
        optimizers=["SGD(lr=0.1)"] * len(labels),
        seeds=list(seeds),
        steps=STEPS,
        samples_per_step=nodes,
        samples="gradients",
        real=False,
        target=None,
    )


def simulated():
    """Three strategies on 16 virtual nodes, one of them slow."""
    torch.set_num_threads(1)
    runs = [[Outcome(seed, _simulate(strategy, seed), None) for seed in SEEDS] for strategy in STRATEGIES]
    names = [describe(strategy) for strategy in STRATEGIES]
    return Results(record(names, [name.partition("(")[0] for name in names]), runs)


def _simulate(strategy, seed):
    return fs.simulate(
        strategy,
        Quadratics(dim=10),
        nodes=NODES,
        steps=STEPS,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        network=fs.Network(bandwidth="100 Mbit/s", latency="2 ms"),
        compute=fs.Compute(step="50 ms", spread=0.3, stragglers={3: 4.0}),
        record_every=6,
        seed=seed,
        timeline=seed == SEEDS[0],
    )


def crowded(label, spans=5000):
    """One strategy on 16 nodes that do one thing after the other thousands of times."""
    rng = np.random.default_rng(0)
    told = Timeline()
    for rank in range(NODES):
        edges = np.concatenate([[0], np.cumsum(rng.uniform(0.001, 0.02, spans))]).tolist()
        for k in range(spans):
            told.spend(rank, KINDS[k % 3], edges[k], edges[k + 1])
        told.send(rank, (rank + 1) % NODES, 1000)
    rows = [Row(float(k), k, 1.0 / (k + 1), 10.0 * k, 0.0) for k in range(10)]
    trace = Trace("", rows, [NodeReport(rank, seconds=50.0) for rank in range(NODES)], {}, timeline=told)
    return Results(record([label], [label], seeds=(0,)), [[Outcome(0, trace, None)]])


def write(results, out):
    """The page alone, without the files beside it."""
    path = out / "report.html"
    path.write_text(page(results, summaries(results, None), None), encoding="utf8")
    return path
