"""The stacked engine: the numbers, bytes, seconds and counts of the events engine, in one matrix."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.flock import not_row_wise
from flockstep.workloads.convex import Logistic, Quadratics, Quartics

PROBLEM = Quadratics(dim=5, noise=1.0, dtype=torch.float64)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)
ADAM = partial(torch.optim.Adam, lr=0.05)
RING = fs.averages.Mixed(topology=fs.topologies.Ring(), codec=fs.codecs.Raw())
STRATEGIES = [
    fs.DataParallel(),
    fs.DataParallel(clip=fs.clips.ClipNorm(max_norm=0.5)),
    fs.DataParallel(average=RING),
    fs.LocalSGD(period=4),
    fs.LocalSGD(period=1, average=RING),
    fs.LocalSGD(
        period=3,
        clip=fs.clips.ClipStep(gamma=0.02),
        average=fs.averages.Mixed(topology=fs.topologies.Star(), codec=fs.codecs.Raw()),
    ),
    fs.CELGC(period=4, gamma=0.02),
    fs.CELGC(period=4),
    fs.SClipEF(),
    fs.SClipEFNetwork(topology=fs.topologies.Exponential()),
    fs.GTNSGDm(topology=fs.topologies.Ring()),
]
OVER_A_NETWORK = [fs.DataParallel(), fs.LocalSGD(period=4), fs.CELGC(period=3, gamma=0.02), fs.SClipEF()]
NETWORK = fs.Network(bandwidth="1 Mbit/s", latency="3 ms")
COMPUTE = fs.Compute(step="10 ms", spread=0.4, stragglers={0: 3.0}, pause="50 ms", pauses=0.1)


def both(strategy, workload=PROBLEM, **options):
    traces = [
        fs.simulate(strategy, workload, engine=engine, **{"steps": 23, "record_every": 5, "seed": 7} | options)
        for engine in ("events", "stacked")
    ]
    assert [trace.engine for trace in traces] == ["events", "stacked"]
    return traces


def assert_same(left, right, tolerance=1e-12):
    assert left.strategy == right.strategy
    assert [row.step for row in left.rows] == [row.step for row in right.rows]
    for name in ("seconds", "loss", "bytes", "spread"):
        mine, theirs = ([getattr(row, name) for row in trace.rows] for trace in (left, right))
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=name)
    for rank, model in left.models.items():
        torch.testing.assert_close(right.models[rank], model, rtol=tolerance, atol=tolerance)
    for mine, theirs in zip(left.nodes, right.nodes, strict=True):
        a, b = asdict(mine), asdict(theirs)
        assert a.pop("counts") == b.pop("counts")
        assert a.pop("views") == b.pop("views") == []
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.cases(check=11)
def test_same_numbers(strategy, size):
    assert_same(*both(strategy, nodes=size, optimizer=MOMENTUM))


@pytest.mark.parametrize("compute", [None, fs.Compute(step="10 ms"), COMPUTE], ids=["instant", "constant", "uneven"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.cases(check=11)
def test_same_seconds_without_a_network(strategy, compute):
    assert_same(*both(strategy, nodes=4, optimizer=ADAM, compute=compute))


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("compute", [None, COMPUTE], ids=["instant", "uneven"])
@pytest.mark.parametrize("strategy", OVER_A_NETWORK, ids=repr)
def test_same_seconds_over_a_network(strategy, compute, size):
    assert_same(*both(strategy, nodes=size, compute=compute, network=NETWORK, start_skew="7 ms"))


def test_same_counts_of_what_was_clipped():
    left, right = both(fs.DataParallel(clip=fs.clips.ClipNorm(max_norm=1e-3)), nodes=3)
    assert [node.counts for node in left.nodes] == [{"clipped": 23}] * 3
    assert_same(left, right)


def test_workloads_of_other_kinds():
    assert_same(*both(fs.LocalSGD(period=4), Quartics(), nodes=5, optimizer=partial(torch.optim.SGD, lr=0.01)))
    rng = np.random.default_rng(0)
    labels = np.sign(rng.standard_normal(60))
    logistic = Logistic(data=(rng.standard_normal((60, 4)), labels), batch=7, heterogeneity=1.0, dtype=torch.float64)
    assert_same(*both(fs.SClipEF(), logistic, nodes=5))


def test_single_precision_is_as_near_as_it_can_be():
    workload = Quadratics(dim=5, noise=1.0)
    assert_same(*both(fs.LocalSGD(period=4), workload, nodes=5), tolerance=1e-5)


# Many seeds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [[3], [0, 5], range(3)])
@pytest.mark.parametrize("strategy", [fs.SClipEF(), fs.SClipEFNetwork(), fs.Swarm()], ids=repr)
def test_many_seeds_are_as_many_runs(strategy, seeds):
    options = {"nodes": 3, "steps": 11, "record_every": 4, "compute": COMPUTE}
    together = fs.simulate_seeds(strategy, PROBLEM, seeds=seeds, **options)
    assert len(together) == len(seeds)
    for seed, trace in zip(seeds, together, strict=True):
        assert_same(fs.simulate(strategy, PROBLEM, seed=seed, engine="events", **options), trace)


def test_rows_are_told_with_the_number_of_their_run():
    told = []
    traces = fs.simulate_seeds(
        fs.SClipEF(),
        PROBLEM,
        seeds=[4, 9],
        nodes=2,
        steps=6,
        record_every=3,
        on_row=lambda *told_of: told.append(told_of),
    )
    assert [row for run, row in told if run == 1] == traces[1].rows
    assert sorted(run for run, _ in told) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(("seeds", "message"), [([], "at least one seed"), ([-1], "seed must be at least 0")])
def test_seeds_that_make_no_sense(seeds, message):
    with pytest.raises(ValueError, match=message):
        fs.simulate_seeds(fs.SClipEF(), PROBLEM, seeds=seeds, nodes=2)


def test_a_run_that_diverges_names_its_seed():
    explosive = partial(torch.optim.SGD, lr=1e200)
    with pytest.raises(fs.Diverged, match="seed 8"):
        fs.simulate_seeds(fs.DataParallel(), PROBLEM, seeds=[8, 9], nodes=2, optimizer=explosive)
    with pytest.raises(fs.Diverged) as caught:
        fs.simulate(fs.DataParallel(), PROBLEM, nodes=2, optimizer=explosive)
    assert caught.value.trace.engine == "stacked"
    assert caught.value.trace.rows[0].step == 0


# When it is not taken -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AsksItsRank:
    row_wise: ClassVar[bool] = True

    async def run(self, node):
        async for k in node.steps():
            g = await node.gradient(node.params)
            await node.step(g if k < 5 else g * (1 + node.rank))


@dataclass(frozen=True)
class Fails:
    row_wise: ClassVar[bool] = True

    async def run(self, node):
        async for _ in node.steps():
            raise ValueError("on purpose")


class OwnOptimizer(torch.optim.SGD):
    """May do anything."""


class Subclass(fs.DataParallel):
    """May do anything as well."""


class Unstacked(Quadratics):
    def stack(self, size):
        return None


@pytest.mark.parametrize(
    ("strategy", "workload", "options", "reason"),
    [
        (fs.Swarm(), PROBLEM, {}, "Swarm does not say that it is row-wise"),
        (Subclass(), PROBLEM, {}, "Subclass does not say"),
        (fs.LocalSGD(period=2, average=fs.averages.Coded(codec=fs.codecs.Cast())), PROBLEM, {}, "Coded does not say"),
        (fs.SClipEFNetwork(codec=fs.codecs.Cast()), PROBLEM, {}, "Cast does not say"),
        (fs.DataParallel(), Unstacked(dim=5), {}, "Unstacked has no stacked form"),
        (fs.DataParallel(), PROBLEM, {"faults": [fs.faults.Crash(node=1, at="1 s")]}, "goes wrong on one node"),
        (fs.DataParallel(), PROBLEM, {"steps": fs.Budget(steps=20)}, "a budget is shared"),
        (fs.DataParallel(), PROBLEM, {"optimizer": partial(OwnOptimizer, lr=0.1)}, "OwnOptimizer may look at more"),
        (fs.SClipEFNetwork(), PROBLEM, {"network": NETWORK}, "mixes with neighbours over a network"),
        (AsksItsRank(), PROBLEM, {}, "asks for its rank"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_says_why_not_and_events_do_it(strategy, workload, options, reason):
    with pytest.raises(ValueError, match=reason):
        fs.simulate(strategy, workload, nodes=2, engine="stacked", **options)
    if "faults" not in options:
        assert fs.simulate(strategy, workload, nodes=2, **options).engine == "events"


def test_a_run_given_up_in_the_middle_tells_every_row_once():
    told = []
    trace = fs.simulate(AsksItsRank(), PROBLEM, nodes=2, steps=20, record_every=2, on_row=told.append)
    assert [row.step for row in told] == [row.step for row in trace.rows] == [*range(0, 20, 2), 20]


def test_an_error_names_its_node_as_ever():
    with pytest.raises(fs.NodeFailed, match="on purpose") as caught:
        fs.simulate(Fails(), PROBLEM, nodes=2)
    assert caught.value.rank is not None


def test_one_broken_row_is_not_skipped_for_all():
    # Node 0 skips its first step only; a matrix could not do that.
    @dataclass(frozen=True)
    class OneBroken:
        rank: int = 0

        def start(self):
            return torch.zeros(2, dtype=torch.float64)

        def gradient(self, x, rng):
            first = self.rank == 0 and not bool(x.any())
            return torch.full((2,), torch.inf if first else 1.0, dtype=torch.float64)

        def loss(self, x):
            return float(x.sum())

        def shard(self, rank, size):
            return OneBroken(rank)

        def stack(self, size):
            return AllAtOnce(size)

    @dataclass(frozen=True)
    class AllAtOnce:
        size: int

        def draw(self, rank, rng, steps):
            return ()

        def gradient(self, x, drawn):
            return torch.stack([OneBroken(rank).gradient(x[0, rank], None) for rank in range(self.size)])[None]

    clip = fs.LocalSGD(period=100, clip=fs.clips.ClipNorm(max_norm=10.0))
    with pytest.raises(ValueError, match="meets a gradient that is not finite"):
        fs.simulate(clip, OneBroken(), nodes=2, steps=4, engine="stacked")
    trace = fs.simulate(clip, OneBroken(), nodes=2, steps=4)
    assert trace.engine == "events"
    assert [node.skipped for node in trace.nodes] == [4, 0]


def test_every_class_speaks_for_itself():
    assert not_row_wise(fs.CELGC(period=2, gamma=1.0)) is None
    assert not_row_wise(fs.CELGCUpdate(period=2, gamma=1.0)) == "CELGCUpdate"
    assert not_row_wise(fs.DataParallel(clip=fs.clips.ClipStep(gamma=lambda step: 1.0))) is None
