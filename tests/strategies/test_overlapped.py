"""HPSGD and its family: oracles, every gradient exactly once, what is late, and what is resumed."""

import dataclasses
import warnings
from functools import partial
from itertools import product

import numpy as np
import overlapped_oracles as oracles
import pytest
import torch
from torch import nn

import flockstep as fs
from flockstep.node import stream
from flockstep.parts.oscillation import Oscillation
from flockstep.testing import check_strategy, check_synchronous
from flockstep.workloads.convex import Quadratics
from flockstep.workloads.language import CharLSTM

# Many of these settings swing, which HPSGD says; the tests below that are about it listen.
pytestmark = pytest.mark.filterwarnings("ignore:HPSGD. merges swing")
ETA, SEED, DIM = 0.1, 3, 6
SGD = partial(torch.optim.SGD, lr=ETA)
PROBLEM = Quadratics(dim=DIM, noise=0.5, dtype=torch.float64)
SIZES = (1, 2, 5)
SLOW = {
    "network": fs.Network(bandwidth="100 kbit/s", latency="5 ms"),
    "compute": fs.Compute(step="10 ms", spread=0.5, stragglers={0: 3.0}),
}


def gradients_of(size):
    """The nodes' stochastic gradients, from the problem's formula and the nodes' own streams."""
    shards = [PROBLEM.shard(rank, size) for rank in range(size)]
    streams = [stream(SEED, rank, "data") for rank in range(size)]

    def gradient(x, shard, rng):
        return shard.curvature * (x - shard.centre) + 0.5 * rng.standard_normal(DIM)

    return [partial(gradient, shard=s, rng=r) for s, r in zip(shards, streams, strict=True)]


def check(strategy, size, steps, expected):
    trace = fs.simulate(strategy, PROBLEM, nodes=size, steps=steps, optimizer=SGD, seed=SEED, **SLOW)
    for rank in range(size):
        np.testing.assert_allclose(trace.models[rank].numpy(), expected[rank], rtol=1e-12, atol=1e-12)


# Oracles -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 13, 28])
@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.cases(check=12, test=12)
def test_hpsgd(size, k, steps):
    for outer_lr in (1.0, 0.6):
        expected = oracles.hpsgd(np.zeros(DIM), gradients_of(size), steps, ETA, k, outer_lr)
        check(fs.HPSGD(period=k, outer_lr=outer_lr, pull=1), size, steps, expected)


@pytest.mark.parametrize("steps", [1, 13, 28])
@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.cases(check=12, test=12)
def test_hpsgd_whose_replicas_keep_most_of_their_lead(size, k, steps):
    for outer_lr, pull in ((1.0, 0.25), (0.6, 0.25), (1.0, 0.7), (0.6, 1.0)):
        expected = oracles.hpsgd_pulled(np.zeros(DIM), gradients_of(size), steps, ETA, k, outer_lr, pull)
        check(fs.HPSGD(period=k, outer_lr=outer_lr, pull=pull), size, steps, expected)


def test_hpsgd_alone_step_by_step_is_sgd_one_step_late():
    (gradient,) = gradients_of(1)
    x, late = np.zeros(DIM), None
    for _ in range(30):
        g = gradient(x)
        x, late = (x if late is None else x - ETA * late), g
    check(fs.HPSGD(period=1, pull=1), 1, 30, [x - ETA * late])


@pytest.mark.parametrize("steps", [1, 13, 28])
@pytest.mark.parametrize("period", [1, 2, 7])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.cases(check=9)
def test_cocod_and_overlap_local_sgd(size, period, steps):
    start = np.zeros(DIM)
    check(fs.CoCoD(period=period), size, steps, oracles.cocod(start, gradients_of(size), steps, ETA, period, 0.5))
    published = oracles.cocod(start, gradients_of(size), steps, ETA, period, 1.0)
    check(fs.CoCoD(period=period, pull=1.0), size, steps, published)
    expected = oracles.overlap_local_sgd(start, gradients_of(size), steps, ETA, period, 0.5, 0.3)
    check(fs.OverlapLocalSGD(period=period), size, steps, expected)
    published = oracles.overlap_local_sgd(start, gradients_of(size), steps, ETA, period, 0.6, 0.7, published=True)
    strategy = fs.OverlapLocalSGD(period=period, pull=0.6, anchor_momentum=0.7, published=True)
    check(strategy, size, steps, published)


@pytest.mark.parametrize("steps", [1, 13, 28])
@pytest.mark.parametrize("period", [1, 2, 7])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.cases(check=9, test=12)
def test_diloco_and_eager_diloco(size, period, steps):
    for ours, oracle in (
        (fs.DiLoCo, oracles.diloco),
        (fs.EagerDiLoCo, oracles.eager_diloco_keeping),
        (partial(fs.EagerDiLoCo, published=True), oracles.eager_diloco),
    ):
        for lr, momentum in ((0.7, 0.9), (1.0, 0.0), (1.0, None)):
            expected = oracle(np.zeros(DIM), gradients_of(size), steps, ETA, period, lr, momentum)
            check(ours(period=period, outer_lr=lr, outer_momentum=momentum), size, steps, expected)


@pytest.mark.parametrize("steps", [1, 13, 31])
@pytest.mark.parametrize(("fragments", "delay"), [(1, 0), (2, 0), (2, 3), (3, 1), (4, 5)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.cases(check=15, test=15)
def test_streaming_diloco(size, fragments, delay, steps):
    cuts = [DIM * p // fragments for p in range(fragments + 1)]
    for alpha, lr, momentum in ((0.0, 0.4, 0.0), (0.5, 0.4, 0.9), (None, 1.0, None)):
        settings = {"period": 6 if momentum is not None else 3 * fragments, "delay": delay, "alpha": alpha}
        if delay >= settings["period"]:
            continue
        expected = oracles.streaming_diloco(
            np.zeros(DIM), gradients_of(size), steps, ETA, cuts=cuts, lr=lr, momentum=momentum, **settings
        )
        ours = fs.StreamingDiLoCo(fragments=fragments, outer_lr=lr, outer_momentum=momentum, **settings)
        check(ours, size, steps, expected)


class Constant:
    """The gradient is 2 everywhere, and the model is shown after every step."""

    def __init__(self, count):
        self.count, self.seen = count, []

    def start(self):
        return torch.ones(self.count, dtype=torch.float64)

    def gradient(self, x, rng):
        self.seen.append(x.clone())
        return torch.full_like(x, 2.0)

    def loss(self, x):
        return float(x.sum())

    def shard(self, rank, size):
        return self


def test_streaming_diloco_gives_the_public_trace():
    """Two fragments, every six steps, inner rate 1, gradient 2, outer rate 2, from 1, without delay."""
    problem = Constant(2)
    strategy = fs.StreamingDiLoCo(period=6, fragments=2, delay=0, alpha=0.0, outer_lr=2.0, outer_momentum=0.0)
    fs.simulate(strategy, problem, nodes=1, steps=16, optimizer=partial(torch.optim.SGD, lr=1.0))
    first = [float(x[0]) for x in problem.seen]
    assert first == [1, -1, -3, -11, -13, -15, -17, -19, -21, -35, -37, -39, -41, -43, -45, -59]


def test_with_a_plain_outer_step_and_no_delay_it_is_local_sgd():
    expected = fs.simulate(fs.LocalSGD(period=5), PROBLEM, nodes=4, steps=23, optimizer=SGD, seed=SEED)
    plain = {"outer_lr": 1.0, "outer_momentum": 0.0}
    for strategy in (
        fs.DiLoCo(period=5, **plain),
        fs.StreamingDiLoCo(period=5, fragments=1, delay=0, alpha=0.0, **plain),
    ):
        trace = fs.simulate(strategy, PROBLEM, nodes=4, steps=23, optimizer=SGD, seed=SEED)
        for rank in range(4):
            torch.testing.assert_close(trace.models[rank], expected.models[rank], rtol=1e-12, atol=1e-12)


NESTEROV = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)


@pytest.mark.parametrize(
    "make",
    [
        partial(fs.DiLoCo, period=3),
        partial(fs.EagerDiLoCo, period=3),
        partial(fs.EagerDiLoCo, period=3, published=True),
        partial(fs.StreamingDiLoCo, period=6, fragments=2, delay=2),
    ],
)
def test_a_torch_optimizer_outside_is_what_it_is_inside(make):
    run = {"nodes": 3, "steps": 20, "optimizer": SGD, "seed": SEED}
    theirs = fs.simulate(make(outer=NESTEROV), PROBLEM, **run)
    ours = fs.simulate(make(outer_lr=0.7, outer_momentum=0.9), PROBLEM, **run)
    assert far_apart(theirs, ours) <= 1e-12
    plain = fs.simulate(make(outer=partial(torch.optim.SGD, lr=1.0)), PROBLEM, **run)
    assert far_apart(plain, fs.simulate(make(outer_momentum=0.0), PROBLEM, **run)) <= 1e-12


def test_adamw_outside_steps_the_global_model_with_the_mean_change():
    trace = fs.simulate(fs.DiLoCo(period=4, outer=ADAM_OUTSIDE), PROBLEM, nodes=2, steps=20, optimizer=SGD, seed=SEED)
    world = torch.zeros(DIM, dtype=torch.float64)
    outer, gradients = ADAM_OUTSIDE([world]), gradients_of(2)
    for _ in range(5):
        xs = [world.numpy().copy() for _ in gradients]
        for _ in range(4):
            for x, gradient in zip(xs, gradients, strict=True):
                x -= ETA * gradient(x)
        world.grad = world - torch.from_numpy(np.mean(xs, axis=0))
        outer.step()
    torch.testing.assert_close(trace.model, world, rtol=1e-12, atol=1e-12)


def test_without_arguments_one_node_trains_as_it_would_alone():
    alone = fs.simulate(fs.LocalSGD(period=1), PROBLEM, nodes=1, steps=60, optimizer=SGD, seed=SEED)
    for strategy in (fs.DiLoCo(period=2), fs.EagerDiLoCo(period=2), fs.StreamingDiLoCo(period=8)):
        trace = fs.simulate(strategy, PROBLEM, nodes=1, steps=60, optimizer=SGD, seed=SEED)
        assert far_apart(trace, alone) <= 1e-12


def decaying_adamw(parameters):
    optimizer = torch.optim.AdamW(parameters, lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer


TEXT = CharLSTM(batch=4, length=16, embedding=16, hidden=32, validation_windows=64)


@pytest.mark.parametrize("kind", [fs.DiLoCo, fs.EagerDiLoCo, fs.StreamingDiLoCo])
@pytest.mark.slow
@pytest.mark.cases(test=1)
def test_a_short_run_with_no_argument_but_the_period_ends_below_one_node_alone(kind):
    run = {"steps": 150, "optimizer": decaying_adamw, "seed": SEED, "record_every": 150}
    alone = fs.simulate(fs.DataParallel(), TEXT, nodes=1, **run).loss
    assert fs.simulate(kind(period=10), TEXT, nodes=2, **run).loss < alone


# Every gradient exactly once -----------------------------------------------------------------------------------------


class Tickets:
    """The t-th gradient of every node is 1 at place t: the model says how often each has entered."""

    def __init__(self, count):
        self.count, self.taken = count, 0

    def start(self):
        return torch.zeros(self.count, dtype=torch.float64)

    def gradient(self, x, rng):
        g = torch.zeros_like(x)
        g[self.taken] = 1.0
        self.taken += 1
        return g

    def loss(self, x):
        return float(x.square().sum())

    def shard(self, rank, size):
        return Tickets(self.count)


EXACT = {
    "HPSGD": lambda k: fs.HPSGD(period=k),
    "HPSGD, as fits": lambda k: fs.HPSGD(min_period=k),
    "HPSGD, from W": lambda k: fs.HPSGD(period=k, pull=1),
    "HPSGD, from W, as fits": lambda k: fs.HPSGD(min_period=k, pull=1),
    "CoCoD": lambda k: fs.CoCoD(period=k),
    "DiLoCo": lambda k: fs.DiLoCo(period=k, outer_lr=1.0, outer_momentum=0.0),
    "EagerDiLoCo": lambda k: fs.EagerDiLoCo(period=k, outer_momentum=0.0),
    "StreamingDiLoCo": lambda k: fs.StreamingDiLoCo(period=k, fragments=1, delay=k // 2, outer_momentum=0.0),
}


@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.cases(check=4, test=16)
def test_every_gradient_enters_exactly_once(name, k):
    for steps, size in product([1, 2, 3, 6, 7, 8, 13, 14, 29], SIZES):
        trace = fs.simulate(
            EXACT[name](k), Tickets(steps), nodes=size, steps=steps, optimizer=partial(torch.optim.SGD, lr=1.0), **SLOW
        )
        for model in trace.models.values():
            torch.testing.assert_close(model, -torch.ones(steps, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pull", [0.25, 1])
def test_on_threads_too_however_many_steps_fit(pull):
    sgd = partial(torch.optim.SGD, lr=1.0)
    trace = fs.launch(fs.HPSGD(pull=pull), Tickets(61), on="threads", nodes=3, steps=61, optimizer=sgd)
    for model in trace.models.values():
        torch.testing.assert_close(model, -torch.ones(61, dtype=torch.float64), rtol=0, atol=1e-12)


class Interrupted(RuntimeError):
    pass


class Counter(nn.Module):
    """A model whose gradient at step t is 1 at place t."""

    def __init__(self, count):
        super().__init__()
        self.marks = nn.Parameter(torch.zeros(count, dtype=torch.float64))

    def forward(self, t):
        return self.marks[t]


@pytest.mark.parametrize("stop", [5, *(pytest.param(stop, marks=pytest.mark.slow) for stop in (1, 11))])
@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.cases(check=6, test=6)
def test_with_a_checkpoint_in_the_middle_too(name, k, stop, tmp_path):
    def loop(stop_at):
        def body():
            model = Counter(17)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            with fs.join(model, optimizer, EXACT[name](k), resume=tmp_path, save_every=1) as node:
                while node.step_count < 17:
                    if node.step_count == stop_at:
                        raise Interrupted
                    optimizer.zero_grad()
                    model(node.step_count).backward()
                    optimizer.step()
            return model.marks.detach().clone()

        return body

    with pytest.raises(fs.NodeFailed, match="Interrupted"):
        fs.simulate(loop(stop), nodes=3, **SLOW)
    for marks in fs.simulate(loop(None), nodes=3, **SLOW).results.values():
        torch.testing.assert_close(marks, -torch.ones(17, dtype=torch.float64), rtol=0, atol=1e-12)


ADAM_OUTSIDE = partial(torch.optim.AdamW, lr=1e-2)
FAMILY = {
    "HPSGD": fs.HPSGD(period=3),
    "HPSGD, from W": fs.HPSGD(period=3, pull=1),
    "CoCoD": fs.CoCoD(period=4),
    "OverlapLocalSGD": fs.OverlapLocalSGD(period=4),
    "DiLoCo": fs.DiLoCo(period=4),
    "EagerDiLoCo": fs.EagerDiLoCo(period=4),
    "StreamingDiLoCo": fs.StreamingDiLoCo(period=6, fragments=3, delay=2),
}
VARIANTS = {
    "EagerDiLoCo, published": fs.EagerDiLoCo(period=4, outer_lr=0.7, outer_momentum=0.9, published=True),
    "StreamingDiLoCo, published": fs.StreamingDiLoCo(
        period=6, fragments=3, delay=2, alpha=0.5, outer_lr=0.4, outer_momentum=0.9
    ),
    "DiLoCo, AdamW": fs.DiLoCo(period=4, outer=ADAM_OUTSIDE),
    "EagerDiLoCo, AdamW": fs.EagerDiLoCo(period=4, outer=ADAM_OUTSIDE),
    "StreamingDiLoCo, AdamW": fs.StreamingDiLoCo(period=6, fragments=3, delay=2, outer=ADAM_OUTSIDE),
}


def data(rank):
    generator = torch.Generator().manual_seed(1000 + rank)
    x = torch.randn(48, 4, generator=generator)
    return x, x.sum(1, keepdim=True)


@pytest.mark.parametrize("name", FAMILY | VARIANTS)
@pytest.mark.cases(test=2)
@pytest.mark.slow
def test_resuming_equals_no_interruption_bit_for_bit(name, tmp_path):
    def loop(folder, stop_at=None):
        def body():
            torch.manual_seed(10 + fs.rank())
            model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            x, y = data(fs.rank())
            with fs.join(model, optimizer, (FAMILY | VARIANTS)[name], resume=folder, save_every=3) as node:
                while node.step_count < 17:
                    if node.step_count == stop_at:
                        raise Interrupted
                    rows = torch.randint(48, (8,))
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
                    optimizer.step()
            return {key: value.clone() for key, value in model.state_dict().items()}

        return body

    whole = fs.simulate(loop(tmp_path / "whole"), nodes=3).results
    with pytest.raises(fs.NodeFailed, match="Interrupted"):
        fs.simulate(loop(tmp_path / "cut", stop_at=11), nodes=3)
    again = fs.simulate(loop(tmp_path / "cut"), nodes=3).results
    for rank in range(3):
        for key, value in whole[rank].items():
            assert torch.equal(value, again[rank][key]), key


# Laws, averages, places ----------------------------------------------------------------------------------------------

AVERAGES = {
    "exact": fs.averages.Exact(),
    "bf16": fs.averages.Coded(codec=fs.codecs.Cast()),
    "8 bits": fs.averages.Coded(codec=fs.codecs.Stochastic(bits=8)),
    "compensated": fs.averages.Compensated(codec=fs.codecs.TopK(fraction=0.5)),
    "PowerSGD": fs.averages.PowerSGD(rank=2),
}


def with_average(name, average):
    return dataclasses.replace(FAMILY[name], average=average)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.cases(test=3)
@pytest.mark.slow
def test_the_laws(name):
    check_strategy(FAMILY[name], is_sgd=name == "CoCoD")
    check_synchronous(FAMILY[name], nodes=(2, 5))


@pytest.mark.cases(test=6)
@pytest.mark.slow
@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("name", FAMILY)
def test_any_average(name, average):
    if name == "StreamingDiLoCo" and average in ("compensated", "PowerSGD"):
        pytest.skip("these two keep residuals of whole models")
    if name in ("CoCoD", "OverlapLocalSGD") and average in ("compensated", "PowerSGD"):
        with pytest.raises(ValueError, match="average must suit models"):
            with_average(name, AVERAGES[average])
        return
    check_strategy(with_average(name, AVERAGES[average]), is_sgd=False, nodes=(1, 3))


def far_apart(a, b):
    return max(float((a.models[rank] - b.models[rank]).abs().max()) for rank in a.models)


@pytest.mark.parametrize("name", FAMILY)
def test_threads_agree_with_the_simulator(name):
    run = {"nodes": 4, "steps": 23, "optimizer": SGD, "seed": SEED}
    virtual = fs.simulate(FAMILY[name], PROBLEM, **run)
    assert far_apart(virtual, fs.launch(FAMILY[name], PROBLEM, on="threads", **run)) <= 1e-6


@pytest.mark.cases(test=2)
@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILY)
def test_processes_agree_with_the_simulator(name):
    run = {"nodes": 4, "steps": 23, "optimizer": SGD, "seed": SEED}
    virtual = fs.simulate(FAMILY[name], PROBLEM, **run)
    assert far_apart(virtual, fs.launch(FAMILY[name], PROBLEM, **run)) <= 1e-6


# As many steps as fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("latency", "fits"), [("1 ms", 1), ("30 ms", 7), ("200 ms", 41)])
@pytest.mark.slow
def test_k_becomes_what_fits_into_a_synchronisation(latency, fits):
    """With 10 ms a step, the mean of two nodes takes two latencies: messages there, and sums back."""
    trace = fs.simulate(
        fs.HPSGD(),
        PROBLEM,
        nodes=2,
        steps=600,
        optimizer=SGD,
        network=fs.Network(bandwidth="1 Gbit/s", latency=latency),
        compute=fs.Compute(step="10 ms"),
    )
    assert trace.busy > 0.8
    rounds = trace.bytes_sent / (8 * DIM + 8)
    assert 600 / rounds == pytest.approx(fits, rel=0.3)


def test_k_stays_within_its_bounds():
    slow = {"network": fs.Network(bandwidth="1 Gbit/s", latency="200 ms"), "compute": fs.Compute(step="10 ms")}
    trace = fs.simulate(fs.HPSGD(max_period=4), PROBLEM, nodes=2, steps=100, optimizer=SGD, **slow)
    assert trace.bytes_sent >= 24 * (8 * DIM + 8)
    trace = fs.simulate(fs.HPSGD(min_period=10), PROBLEM, nodes=2, steps=100, optimizer=SGD)
    assert trace.bytes_sent <= 11 * (8 * DIM + 8)


# Swinging ------------------------------------------------------------------------------------------------------------


def changes(strength, periods, noise=0.0):
    """The mean changes of a quadratic with lr c = strength, one period late."""
    rng = np.random.default_rng(0)
    now, before = np.ones(50), np.ones(50)
    for _ in range(periods):
        change = strength * before + noise * rng.standard_normal(50)
        yield torch.from_numpy(strength * now + noise * rng.standard_normal(50))
        now, before = now - change, now


@pytest.mark.parametrize("strength", [0.05, 0.2, 0.5, 0.9])
def test_the_strength_of_a_swing_is_seen(strength):
    watch = Oscillation("here", speaks=False)
    for change in changes(strength, 30):
        watch.see(change)
    assert watch.strength == pytest.approx(strength, rel=1e-6)


STIFF = Quadratics(dim=8, noise=0.0, heterogeneity=0.0, condition=1.0, dtype=torch.float64)


def test_a_merge_that_swings_is_told_once_with_what_to_do():
    with pytest.warns(UserWarning, match="merges swing") as told:
        fs.simulate(fs.HPSGD(period=12, pull=1), STIFF, nodes=2, steps=400, optimizer=SGD)
    assert len(told) == 1
    assert all(word in str(told[0].message) for word in ("outer_lr", "max_period", "pull"))


@pytest.mark.slow
def test_a_merge_that_does_not_swing_is_not_told():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fs.simulate(fs.HPSGD(period=2, pull=1), STIFF, nodes=2, steps=400, optimizer=SGD)
        fs.simulate(fs.HPSGD(period=12, outer_lr=0.2, pull=1), STIFF, nodes=2, steps=400, optimizer=SGD)


@pytest.mark.parametrize("k", [1, 4, 16, 64])
@pytest.mark.cases(check=3)
@pytest.mark.slow
def test_by_default_nothing_swings_for_long(k):
    """From W, long periods on a stiff problem swing on and on; a replica that keeps its lead is there at once."""

    def left(**arguments):
        trace = fs.simulate(
            fs.HPSGD(period=k, **arguments), STIFF, nodes=2, steps=24 * k, optimizer=partial(SGD, lr=0.9)
        )
        return STIFF.loss(trace.model) - STIFF.loss(STIFF.optimum())

    assert left() < 1e-6
    assert left(pull=1) > 1e-2


# Buffers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy",
    [
        fs.HPSGD(period=2, outer_lr=0.5),
        fs.HPSGD(period=2, outer_lr=0.5, pull=1),
        fs.DiLoCo(period=2),
        fs.EagerDiLoCo(period=2),
        fs.StreamingDiLoCo(period=4, fragments=2, delay=1),
        fs.NoLoCo(period=2),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
@pytest.mark.cases(check=2)
def test_statistics_are_averaged_and_not_carried_by_momentum(strategy):
    """Inputs that grow less and less noisy: momentum would carry the running variance below zero."""

    def train():
        torch.manual_seed(fs.rank())
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, momentum=0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with fs.join(model, optimizer, strategy):
            for k in range(40):
                optimizer.zero_grad()
                model(torch.randn(16, 2) * 0.7**k).sum().backward()
                optimizer.step()
        return model[1].running_var.clone()

    for variance in fs.simulate(train, nodes=4).results.values():
        assert float(variance.min()) >= 0.0
        assert float(variance.max()) < 0.5


# PowerSGD ------------------------------------------------------------------------------------------------------------


class Matrices:
    """Several matrices of one shape whose gradients have rank one, and a vector beside them."""

    def __init__(self, count, rank=0, steps=0):
        self.count, self.rank = count, rank

    def start(self):
        return torch.zeros(self.count * 12 + 5, dtype=torch.float64)

    def tensors(self, v):
        return [v[12 * i : 12 * (i + 1)].view(3, 4) for i in range(self.count)] + [v[12 * self.count :]]

    def gradient(self, x, rng):
        # The same left vector on all nodes and at all times, so that the mean has rank one, too.
        left = np.random.default_rng(7).standard_normal((self.count, 3))
        parts = [np.outer(column, rng.standard_normal(4)).ravel() for column in left]
        return torch.from_numpy(np.concatenate([*parts, rng.standard_normal(5)]))

    def loss(self, x):
        return float(x.square().sum())

    def shard(self, rank, size):
        return Matrices(self.count, rank)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("size", SIZES)
def test_powersgd_is_exact_for_matrices_of_rank_one(count, size):
    run = {"nodes": size, "steps": 9, "optimizer": SGD, "seed": SEED}
    exact = fs.simulate(fs.DataParallel(), Matrices(count), **run)
    sketched = fs.simulate(fs.DataParallel(average=fs.averages.PowerSGD(rank=1)), Matrices(count), **run)
    # Where rows and columns are nearly orthogonal, rounding is all that is left of their product.
    assert far_apart(exact, sketched) <= 1e-9
    if size > 1:
        assert sketched.bytes_sent < exact.bytes_sent


def test_what_a_sketch_leaves_out_is_sent_later():
    """Gradients of full rank: with feedback the sum of what was applied follows the sum of what was asked for."""

    class Full(Matrices):
        def gradient(self, x, rng):
            fixed = np.random.default_rng(self.rank).standard_normal(self.count * 12 + 5)
            return torch.from_numpy(fixed)

        def shard(self, rank, size):
            return Full(self.count, rank)

    run = {"nodes": 3, "steps": 60, "optimizer": SGD}
    exact = fs.simulate(fs.DataParallel(), Full(2), **run).model
    sketched = fs.simulate(fs.DataParallel(average=fs.averages.PowerSGD(rank=1)), Full(2), **run).model
    assert float((sketched - exact).norm() / exact.norm()) < 0.1


@pytest.mark.slow
def test_powersgd_in_a_loop_knows_the_models_matrices():
    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        torch.manual_seed(1 + fs.rank())
        x = torch.randn(64, 40)
        y = x[:, :1] - x[:, 1:2]
        losses = []
        with fs.join(model, optimizer, fs.DataParallel(average=fs.averages.PowerSGD(rank=2))) as node:
            for _ in range(80):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses[0], losses[-1], node.report().bytes_sent

    for first, last, sent in fs.simulate(train, nodes=4).results.values():
        assert last < 0.2 * first
        # 80 gradients of 1,261 numbers, there and back for three quarters of each, would be 605 kB.
        assert sent < 150_000


# Arguments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fs.HPSGD(period=0), "HPSGD.period must be at least 1, got 0"),
        (lambda: fs.HPSGD(min_period=5, max_period=4), "HPSGD.max_period must be at least min_period, 5, got 4"),
        (lambda: fs.HPSGD(outer_lr=0), "HPSGD.outer_lr must be positive, got 0"),
        (lambda: fs.HPSGD(pull=0), "HPSGD.pull must be positive, got 0"),
        (lambda: fs.HPSGD(pull=1.5), "HPSGD.pull must be between 0 and 1, got 1.5"),
        (lambda: fs.HPSGD(average=fs.averages.Exact), "write Exact(...), with parentheses"),
        (lambda: fs.CoCoD(period=0), "CoCoD.period must be at least 1, got 0"),
        (lambda: fs.CoCoD(pull=0), "CoCoD.pull must be"),
        (lambda: fs.CoCoD(pull=1.5), "CoCoD.pull must be"),
        (lambda: fs.OverlapLocalSGD(pull=1.5), "OverlapLocalSGD.pull must be between 0 and 1, got 1.5"),
        (lambda: fs.OverlapLocalSGD(anchor_momentum=1), "OverlapLocalSGD.anchor_momentum must be below 1, got 1"),
        (lambda: fs.DiLoCo(outer_momentum=1.0), "DiLoCo.outer_momentum must be below 1, got 1.0"),
        (lambda: fs.EagerDiLoCo(outer_momentum=1.0), "EagerDiLoCo.outer_momentum must be below 1, got 1.0"),
        (lambda: fs.DiLoCo(outer=3), "DiLoCo.outer must make a torch optimizer, such as functools.partial("),
        (lambda: fs.DiLoCo(outer=NESTEROV, outer_lr=0.7), "leave outer_lr and outer_momentum out"),
        (lambda: fs.StreamingDiLoCo(period=3, fragments=4), "must be at most the period, 3, got 4"),
        (lambda: fs.StreamingDiLoCo(period=6, delay=6), "StreamingDiLoCo.delay must be below the period, 6, got 6"),
        (lambda: fs.StreamingDiLoCo(alpha=2), "StreamingDiLoCo.alpha must be between 0 and 1, got 2"),
        (
            lambda: fs.StreamingDiLoCo(average=fs.averages.Mixed(topology=fs.topologies.Ring(), codec=fs.codecs.Raw())),
            "StreamingDiLoCo.average must be one over all nodes, such as Exact() or Coded(codec=Cast()), not Mixed",
        ),
        (lambda: fs.averages.PowerSGD(rank=0), "PowerSGD.rank must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(make, sentence):
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert sentence in str(caught.value)
