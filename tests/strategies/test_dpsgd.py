"""DPSGD: against NumPy, in its degenerate cases, losing nothing, and through the deaths of workers and server."""

from collections import Counter
from dataclasses import dataclass
from functools import partial

import dpsgd_oracles as oracles
import numpy as np
import pytest
import torch
from torch import nn

import flockstep as fs
from flockstep.backends.sim.cluster.compute import Clock
from flockstep.node import stream
from flockstep.testing import check_strategy
from flockstep.workloads.convex import Quadratics

# Runs here are short, which the theory does not cover.
pytestmark = pytest.mark.filterwarnings("ignore:DPSGD's analysis")
SEED, STEPS, DIM, ETA = 3, 29, 6, 0.05
PROBLEM = Quadratics(dim=DIM, noise=1.0, dtype=torch.float64)
SGD = partial(torch.optim.SGD, lr=ETA)
# No two of these have a common multiple within reach.
SPEEDS = [1.0, 1.3719, 0.8831, 2.1137]


def run(strategy, size, **options):
    return fs.simulate(strategy, PROBLEM, nodes=size, steps=STEPS, optimizer=SGD, seed=SEED, **options)


def gradients(size):
    shards = [PROBLEM.shard(rank, size) for rank in range(size)]
    streams = [stream(SEED, rank, "data") for rank in range(size)]
    return lambda rank, x: shards[rank].gradient(torch.from_numpy(x.copy()), streams[rank]).numpy()


# Oracles --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(
    ("period", "pushes_per_update", "rate"),
    [(1, 1, 1.0), (4, 1, 1.0), (7, 1, 0.5), (1, 2, 1.0), (3, 2, 0.5), (29, 1, 1.0)],
)
@pytest.mark.cases(test=8)
def test_a_server_and_workers_of_known_speeds(workers, period, pushes_per_update, rate):
    speeds = SPEEDS[:workers]
    strategy = fs.DPSGD(period=period, pushes_per_update=pushes_per_update, server_lr=rate, server_trains=False)
    compute = fs.Compute(step=1.0, stragglers={rank + 1: speed for rank, speed in enumerate(speeds)})
    trace = run(strategy, workers + 1, compute=compute, start_skew=0.0)
    v, late = oracles.with_a_server(
        np.zeros(DIM),
        gradients(workers + 1),
        speeds,
        STEPS,
        period=period,
        pushes_per_update=pushes_per_update,
        eta=ETA,
        rate=rate,
    )
    np.testing.assert_allclose(trace.models[0].numpy(), v, rtol=1e-12, atol=1e-14)
    buckets = Counter(
        str(s) if s < 2 else next(f"{b}-{2 * b - 1}" for b in (2, 4, 8, 16, 32) if s < 2 * b) for s in late
    )
    assert {k.removeprefix("staleness "): n for k, n in trace.nodes[0].counts.items() if "staleness" in k} == buckets


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("period", [1, 4, 7])
def test_hogwild_on_one_node(threads, period):
    compute = fs.Compute(step=1.0, spread=0.4)
    trace = run(fs.DPSGD(threads=threads, period=period), 1, compute=compute, start_skew=0.0)
    clock = Clock(compute, 0, stream(SEED, 0, "clock"))
    jitter = [stream(SEED, 0, "clock", 1 + member) for member in range(threads)]
    streams = [stream(SEED, 0, "data", member) for member in range(threads)]
    shard = PROBLEM.shard(0, 1)
    x = oracles.hogwild(
        np.zeros(DIM),
        lambda member, x: shard.gradient(torch.from_numpy(x.copy()), streams[member]).numpy(),
        lambda member: (1 + 1e-6 * jitter[member].random()) * clock.gradient(),
        STEPS,
        threads=threads,
        period=period,
        eta=ETA,
    )
    np.testing.assert_allclose(trace.models[0].numpy(), x, rtol=1e-11, atol=1e-13)
    assert trace.nodes[0].counts["stale writes"] > 0
    assert "lost writes" not in trace.nodes[0].counts


# Degenerate cases -----------------------------------------------------------------------------------------------------


def test_one_of_everything_is_serial_sgd_bit_for_bit():
    assert torch.equal(run(fs.DPSGD(), 1).models[0], run(fs.DataParallel(), 1, engine="events").models[0])


def test_one_of_everything_with_a_server_apart_is_serial_sgd():
    # Numbers whose sums and differences are exact: then bit for bit, too.
    trace = fs.simulate(fs.DPSGD(server_trains=False), Count(), nodes=2, steps=9, optimizer=ONE)
    assert trace.models[0].tolist() == trace.models[1].tolist() == [-18.0] * 4


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("period", [1, 4])
def test_all_in_step_is_local_sgd_with_a_sum(workers, period):
    strategy = fs.DPSGD(period=period, pushes_per_update=workers, server_lr=1.0, server_trains=False)
    trace = run(strategy, workers + 1)
    at, v = gradients(workers + 1), np.zeros(DIM)
    for begin in range(0, STEPS, period):
        changes = []
        for rank in range(1, workers + 1):
            u = v.copy()
            for _ in range(min(period, STEPS - begin)):
                u = u - ETA * at(rank, u)
            changes.append(u - v)
        v = v + sum(changes)
    np.testing.assert_allclose(trace.models[0].numpy(), v, rtol=1e-11, atol=1e-13)


# Nothing is lost ------------------------------------------------------------------------------------------------------

ONE = partial(torch.optim.SGD, lr=1.0)


@dataclass(frozen=True)
class Count:
    """Gradients of whole numbers, another one for each node: what all have moved together is known to the bit."""

    rank: int = 0

    def start(self):
        return torch.zeros(4, dtype=torch.float64)

    def gradient(self, x, rng):
        return torch.full((4,), float(self.rank + 1), dtype=torch.float64)

    def loss(self, x):
        return float(x.sum())

    def shard(self, rank, size):
        return Count(rank)


def moved(size, steps, *, server_trains=True):
    return -float(steps * sum(rank + 1 for rank in range(0 if server_trains else 1, size)))


UNEVEN = {
    "network": fs.Network(bandwidth="100 kbit/s", latency="3 ms"),
    "compute": fs.Compute(step="10 ms", spread=0.5, stragglers={0: 3.0}),
}


# Each node falls down a slope of its own, and in this short run some never talk.
@pytest.mark.filterwarnings("ignore:the nodes drift apart")
@pytest.mark.parametrize("hardware", [{}, UNEVEN], ids=["instant", "uneven"])
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("max_steps_in_flight", [0, 3, 100])
@pytest.mark.cases(check=18)
def test_every_step_enters_once(threads, size, max_steps_in_flight, hardware):
    strategy = fs.DPSGD(threads=threads, period=2, server_lr=1.0, max_steps_in_flight=max_steps_in_flight)
    trace = fs.simulate(strategy, Count(), nodes=size, steps=31, optimizer=ONE, **hardware)
    assert trace.models[0].tolist() == [moved(size, 31)] * 4
    assert [node.gradients for node in trace.nodes] == [31] * size


@pytest.mark.parametrize(
    "strategy",
    [
        fs.DPSGD(pushes_per_update=2),
        fs.DPSGD(pushes_per_update=7, period=3),
        fs.DPSGD(pushes_per_update=2, max_steps_in_flight=5),
        fs.DPSGD(max_staleness=0),
        fs.DPSGD(max_staleness=2, period=3, max_steps_in_flight=4),
        fs.DPSGD(max_staleness=1, pushes_per_update=3),
        fs.DPSGD(codec=fs.codecs.TopK(fraction=0.5)),
        fs.DPSGD(codec=fs.codecs.Stochastic(bits=4), max_steps_in_flight=2),
        fs.DPSGD(server=1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("server_trains", [True, False])
@pytest.mark.cases(check=2, test=3)
def test_nor_do_folds_gates_or_codecs_lose_one(strategy, server_trains):
    strategy = fs.DPSGD(**{**vars(strategy), "server_lr": 1.0, "server_trains": server_trains})
    trace = fs.simulate(strategy, Count(), nodes=4, steps=31, optimizer=ONE, **UNEVEN)
    total = sum(31 * (rank + 1) for rank in range(4) if server_trains or rank != strategy.server)
    # To the bit with whole numbers; a codec that rounds makes others of them.
    assert (trace.models[strategy.server] + total).tolist() == pytest.approx([0.0] * 4, abs=1e-9 * lossy(strategy))


def lossy(strategy):
    return not isinstance(strategy.codec, fs.codecs.Raw)


class Apart(Count):
    """Each member of a crew writes numbers of its own, so that no two cores write one at once, and none is lost."""

    def start(self):
        return torch.zeros(12, dtype=torch.float64)

    def gradient(self, x, rng):
        g = torch.zeros_like(x)
        self.descend(g, rng, 1, -1.0)
        return g

    def descend(self, x, rng, steps, rate):
        member = next(iter(rng.bit_generator.seed_seq.entropy[3:]), 0)
        x.numpy()[4 * member : 4 * member + 4] -= rate * steps * (self.rank + 1)

    def shard(self, rank, size):
        return type(self)(rank)


class ApartInThreads(Apart):
    """The same, for a crew of threads."""

    leaves_interpreter_lock = True

    def descend(self, x, rng, steps, rate):
        super().descend(x, rng, steps, rate)


@pytest.mark.cases(test=1)
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "on"), [(Apart, "threads"), (Apart, "processes"), (ApartInThreads, "threads")])
@pytest.mark.parametrize(("threads", "size"), [(2, 1), (2, 2), (3, 5)])
def test_no_step_of_a_crew_is_lost_on_real_nodes(threads, size, kind, on):
    strategy = fs.DPSGD(threads=threads, period=2, server_lr=1.0)
    trace = fs.launch(strategy, kind(), nodes=size, steps=31, optimizer=ONE, timeout=120, on=on)
    assert [(node.steps, node.gradients) for node in trace.nodes] == [(31, 31)] * size
    model = trace.models[0].view(3, 4)
    assert model.sum(0).tolist() == [moved(size, 31)] * 4
    assert [bool(member.any()) for member in model] == [number < threads for number in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("on", ["threads", "processes"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_nothing_is_lost_on_real_nodes(size, on):
    strategy = fs.DPSGD(period=2, server_lr=1.0, max_steps_in_flight=3)
    trace = fs.launch(strategy, Count(), nodes=size, steps=31, optimizer=ONE, timeout=60, on=on)
    assert trace.models[0].tolist() == [moved(size, 31)] * 4
    pushes = sum(n for name, n in trace.nodes[0].counts.items() if "staleness" in name)
    assert pushes == sum(node.counts["exchanges"] for node in trace.nodes)


@pytest.mark.parametrize("on", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options", [{"pushes_per_update": 2}, {"max_staleness": 1, "max_steps_in_flight": 2}], ids=repr
)
def test_who_is_held_on_real_nodes_is_let_go_by_a_server_that_has_returned(options, on):
    strategy = fs.DPSGD(server_lr=1.0, server_trains=False, **options)
    trace = fs.launch(strategy, Count(), nodes=4, steps=31, optimizer=ONE, timeout=60, on=on)
    assert trace.models[0].tolist() == [moved(4, 31, server_trains=False)] * 4


# What a push counts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("server_trains", [True, False])
def test_unless_told_otherwise_the_server_moves_by_the_mean_of_its_workers(workers, server_trains):
    size = workers + (not server_trains)
    trace = fs.simulate(fs.DPSGD(server_trains=server_trains), Count(), nodes=size, steps=31, optimizer=ONE, **UNEVEN)
    expected = moved(size, 31, server_trains=server_trains) / workers
    assert trace.models[0].tolist() == pytest.approx([expected] * 4, rel=1e-12)


def test_one_worker_left_counts_in_full():
    # Node 2 dies before its first step is done; what node 1 pushes from then on is all there is.
    crash = fs.faults.Crash(node=2, at="1 us")
    trace = fs.simulate(
        fs.DPSGD(server_trains=False),
        Count(),
        nodes=3,
        steps=9,
        optimizer=ONE,
        faults=[crash],
        start_skew=0.0,
        **DEATHS,
    )
    assert trace.models[0].tolist() == [-18.0] * 4


# Waiting --------------------------------------------------------------------------------------------------------------


def test_the_gate_holds_who_is_too_far_ahead():
    straggler = {"compute": fs.Compute(step="10 ms", stragglers={2: 10.0}), "start_skew": 0.0}
    free = run(fs.DPSGD(server_trains=False), 4, **straggler)
    gated = run(fs.DPSGD(server_trains=False, max_staleness=2), 4, **straggler)
    ends = [[node.seconds for node in trace.nodes] for trace in (free, gated)]
    assert ends[0][1] < 0.2 * ends[0][2]
    # Two pushes ahead of one that takes ten times as long.
    assert ends[1][1] > 0.85 * ends[1][2]


def test_a_slow_worker_leaves_the_others_alone():
    hardware = {"network": fs.Network(bandwidth="100 Mbit/s", latency="1 ms"), "start_skew": 0.0}
    strategy = fs.DPSGD(period=4, server_trains=False)
    alike = run(strategy, 5, compute=fs.Compute(step="50 ms"), **hardware)
    uneven = run(strategy, 5, compute=fs.Compute(step="50 ms", stragglers={4: 4.0}), **hardware)
    for rank in (1, 2, 3):
        assert uneven.nodes[rank].seconds == pytest.approx(alike.nodes[rank].seconds, rel=0.02)


def test_damping_makes_the_stale_count_less():
    options = {"compute": fs.Compute(step=1.0, stragglers={1: 1.0, 2: 7.3}), "start_skew": 0.0}
    plain, damped = (
        fs.simulate(strategy, Count(), nodes=3, steps=5, optimizer=ONE, **options)
        for strategy in (fs.DPSGD(server_lr=1.0, server_trains=False, damping=damping) for damping in (0.0, 1.0))
    )
    assert plain.models[0].tolist() == [-25.0] * 4
    # Node 2 is late once, by node 1's five folds: its first push of 3 counts a sixth.
    assert damped.models[0].tolist() == pytest.approx([-(5 * 2 + 4 * 3 + 3 / 6)] * 4)


# Deaths ---------------------------------------------------------------------------------------------------------------

DEATHS = {"network": fs.Network(bandwidth="10 Mbit/s", latency="1 ms"), "compute": fs.Compute(step="10 ms", spread=0.2)}


def test_a_dead_worker_is_forgotten():
    trace = run(fs.DPSGD(max_staleness=3), 4, faults=[fs.faults.Crash(node=2, at="100 ms")], timeout="50 ms", **DEATHS)
    assert [trace.nodes[rank].steps for rank in (0, 1, 3)] == [STEPS] * 3


def test_one_that_comes_back_reads_the_model_and_starts():
    crash = fs.faults.Crash(node=2, at="100 ms", back_after="50 ms")
    trace = run(fs.DPSGD(), 4, faults=[crash], timeout="50 ms", **DEATHS)
    assert trace.nodes[2].counts["restarts"] == 1
    assert trace.loss < trace.rows[0].loss


@pytest.mark.slow
def test_a_server_that_comes_back_takes_over_the_newest_model_a_worker_has():
    crash = fs.faults.Crash(node=0, at="150 ms", back_after="60 ms")
    options = {"timeout": "50 ms", "optimizer": partial(torch.optim.SGD, lr=0.02), **DEATHS}
    strategy = fs.DPSGD(server_trains=False)
    calm, struck = (
        fs.simulate(strategy, PROBLEM, nodes=4, steps=150, seed=SEED, faults=faults, **options)
        for faults in ([], [crash])
    )
    assert struck.nodes[0].counts["server restored"] >= 1
    assert sum(node.counts.get("server lost", 0) for node in struck.nodes[1:]) > 0
    assert [node.steps for node in struck.nodes[1:]] == [150] * 3
    assert struck.loss == pytest.approx(calm.loss, rel=0.2)


def test_without_a_server_patience_ends():
    crash = fs.faults.Crash(node=0, at="100 ms")
    told = r"server, node 0: 11 pushes in a row had no reply, over 11 steps of its own .*patience is 10\)\n.*is dead"
    with pytest.raises(fs.LostPeer, match=told):
        run(fs.DPSGD(server_trains=False, patience=10), 3, faults=[crash], timeout="50 ms", **DEATHS)


@pytest.mark.slow
def test_a_server_that_replies_too_late_is_told_from_a_dead_one():
    # A model takes 0.6 s on this link, and a reply may take 50 ms: 40 steps, and then the same push again and again.
    slow = {"network": fs.Network(bandwidth="100 kbit/s"), "compute": DEATHS["compute"], "timeout": "50 ms"}
    told = (
        r"1001 pushes in a row had no reply, over 40 steps of its own .*patience is 1000\)\n.*lives, but replies later"
    )
    with pytest.raises(fs.LostPeer, match=told):
        fs.simulate(fs.DPSGD(), Quadratics(dim=2000), nodes=5, steps=40, **slow)


def test_who_ends_while_the_server_is_away_waits_for_it():
    # Nine steps of 10 ms, most of them with nobody to push to: they come with the last push.
    crash = fs.faults.Crash(node=0, at="15 ms", back_after="3 s")
    trace = fs.simulate(
        fs.DPSGD(server_lr=1.0, server_trains=False),
        Count(),
        nodes=3,
        steps=9,
        optimizer=ONE,
        faults=[crash],
        **DEATHS,
    )
    assert [node.steps for node in trace.nodes[1:]] == [9, 9]
    assert trace.models[0].tolist() == [moved(3, 9, server_trains=False)] * 4


HOLDING = [
    fs.DPSGD(pushes_per_update=2, server_trains=False),
    fs.DPSGD(pushes_per_update=3),
    fs.DPSGD(max_staleness=0),
    fs.DPSGD(max_staleness=1, pushes_per_update=2, max_steps_in_flight=2, server_trains=False),
]


@pytest.mark.parametrize("strategy", HOLDING, ids=repr)
@pytest.mark.parametrize("back_after", [None, "60 ms"])
@pytest.mark.cases(check=3)
def test_nobody_waits_for_a_dead_worker(strategy, back_after):
    for at in ("1 ms", "50 ms", "150 ms", "155 ms", "160 ms"):
        crash = fs.faults.Crash(node=2, at=at, back_after=back_after)
        trace = run(strategy, 3, faults=[crash], timeout="50 ms", **DEATHS)
        assert trace.nodes[1].steps == STEPS


@pytest.mark.parametrize("strategy", HOLDING, ids=repr)
@pytest.mark.cases(check=1, test=2)
def test_nor_for_one_whose_end_is_not_heard_of(strategy):
    pace = {**DEATHS, "compute": fs.Compute(step="10 ms", stragglers={1: 0.5}), "timeout": "50 ms"}
    for seed in range(8):
        trace = fs.simulate(
            strategy,
            PROBLEM,
            nodes=3,
            steps=STEPS,
            seed=seed,
            faults=[fs.faults.MessageLoss(share=0.4)],
            optimizer=SGD,
            **pace,
        )
        assert [node.steps for node in trace.nodes[1:]] == [STEPS] * 2


@pytest.mark.slow
def test_even_where_everything_is_lost_a_run_ends():
    # Node 1 has ended by then, and node 2 is held for its sake; letters still come.
    deaf = fs.faults.MessageLoss(share=1.0, start="200 ms")
    pace = {**DEATHS, "compute": fs.Compute(step="10 ms", stragglers={1: 0.5}), "timeout": "50 ms"}
    with pytest.raises(fs.LostPeer, match="lost the server"):
        run(fs.DPSGD(pushes_per_update=2, server_trains=False), 3, faults=[deaf], **pace)


def test_a_new_server_learns_who_has_ended():
    # Node 1 is fast, and done by then; the server that knew so dies.
    pace = {**DEATHS, "compute": fs.Compute(step="10 ms", stragglers={1: 0.3, 4: 1.7}), "timeout": "50 ms"}
    crash = fs.faults.Crash(node=0, at="450 ms", back_after="20 ms")
    trace = run(fs.DPSGD(pushes_per_update=3, server_trains=False), 5, faults=[crash], **pace)
    assert [node.steps for node in trace.nodes[1:]] == [STEPS] * 4
    assert trace.nodes[1].seconds < 0.45 < trace.nodes[2].seconds


def test_a_second_loop_begins_with_everybody():
    def train():
        for _ in range(2):
            model = nn.Linear(3, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            with fs.join(model, optimizer, fs.DPSGD(pushes_per_update=3)) as node:
                for _ in range(12):
                    optimizer.zero_grad()
                    model(torch.ones(1, 3)).sum().backward()
                    optimizer.step()
        return dict(node.kept)["given version"].item()

    # Had those who ended the first loop been taken for gone in the second, its server would have folded less at a time.
    trace = fs.simulate(train, nodes=3, compute=fs.Compute(step="10 ms"), start_skew=0.0)
    assert trace.results[1] == trace.results[2] == 12


# In every place -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy", [fs.DPSGD(), fs.DPSGD(period=3, max_steps_in_flight=4), fs.DPSGD(pushes_per_update=2)], ids=repr
)
@pytest.mark.slow
@pytest.mark.cases(test=1)
def test_the_laws(strategy):
    check_strategy(strategy)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_in_a_loop_of_ones_own(size):
    def train():
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with fs.join(model, optimizer, fs.DPSGD(period=2, max_steps_in_flight=2)) as node:
            x = torch.randn(32, 3, generator=torch.Generator().manual_seed(node.rank))
            first = float((model(x) - x[:, :2]).square().mean().detach())
            for _ in range(20):
                optimizer.zero_grad()
                loss = (model(x) - x[:, :2]).square().mean()
                loss.backward()
                optimizer.step()
        return first, float(loss.detach())

    for trace in (fs.launch(train, nodes=size, on="threads", timeout=60), fs.simulate(train, nodes=size)):
        assert all(last < 0.8 * first for first, last in trace.results.values())


def test_a_crew_needs_a_workload():
    def train():
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with fs.join(model, optimizer, fs.DPSGD(threads=2)):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()

    with pytest.raises(fs.NodeFailed, match="a loop of your own is one thread"):
        fs.simulate(train, nodes=2)


def test_more_than_the_theory_covers_is_said_once():
    with pytest.warns(UserWarning, match="at most 2 threads and 5 workers for 29 steps in all; here are 3 and 1"):
        run(fs.DPSGD(threads=3), 1)
    with pytest.warns(UserWarning, match="here are 1 and 8"):
        fs.simulate(fs.DPSGD(), PROBLEM, nodes=8, steps=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fs.DPSGD(threads=0), "DPSGD.threads must be at least 1"),
        (lambda: fs.DPSGD(max_steps_in_flight=-1), "DPSGD.max_steps_in_flight must be at least 0"),
        (lambda: fs.DPSGD(server_lr=0), "DPSGD.server_lr must be positive"),
        (lambda: fs.DPSGD(codec=3), "DPSGD.codec"),
        (lambda: run(fs.DPSGD(server=4), 2), "DPSGD.server must be one of the 2 nodes, got 4"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises((ValueError, TypeError, fs.NodeFailed), match=message):
        make()


# Checkpoints ----------------------------------------------------------------------------------------------------------


def resumable(folder, stop_at=None):
    def train():
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        x = torch.randn(32, 3, generator=torch.Generator().manual_seed(fs.rank()))
        with fs.join(model, optimizer, fs.DPSGD(period=2), resume=folder, save_every=3) as node:
            began, version = node.step_count, int(node.kept.get("server version", torch.zeros(1)))
            for step in range(node.step_count, 20):
                if step == stop_at:
                    raise RuntimeError("stop here")
                optimizer.zero_grad()
                (model(x) - x[:, :2]).square().mean().backward()
                optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()], began, version

    return train


def test_alone_a_resumed_run_is_the_same_bit_for_bit(tmp_path):
    whole = fs.simulate(resumable(tmp_path / "whole"), nodes=1).results[0]
    with pytest.raises(fs.NodeFailed, match="stop here"):
        fs.simulate(resumable(tmp_path / "cut", stop_at=14), nodes=1)
    again, began, version = fs.simulate(resumable(tmp_path / "cut"), nodes=1).results[0]
    assert (began, version) == (12, 6)
    assert all(torch.equal(a, b) for a, b in zip(whole[0], again, strict=True))


@pytest.mark.parametrize("size", [2, 3])
def test_the_servers_state_survives(size, tmp_path):
    pace = {"compute": fs.Compute(step="10 ms"), "start_skew": 0.0}
    with pytest.raises(fs.NodeFailed, match="stop here"):
        fs.simulate(resumable(tmp_path, stop_at=14), nodes=size, **pace)
    results = fs.simulate(resumable(tmp_path), nodes=size, **pace).results
    assert results[0][1] == 12
    # Every node had pushed six times, give or take what was under way.
    assert 6 * size - size <= results[0][2] <= 6 * size + size


def test_a_worker_that_is_done_waits_a_minute_for_a_server_that_is_dead():
    with pytest.raises(fs.LostPeer, match="the server is dead"):
        fs.simulate(
            fs.DPSGD(patience=10**6),
            Quadratics(dim=3),
            nodes=2,
            steps=20,
            compute=fs.Compute(step="20 ms"),
            faults=[fs.faults.Crash(node=0, at="0.2 s")],
            timeout="1 s",
        )
