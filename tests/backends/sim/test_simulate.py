"""The simulator: where time goes, what faults do, and how it says that something is wrong."""

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch

import flockstep as fs
from flockstep.testing.law import Page, note
from flockstep.workloads.convex import Quadratics

PROBLEM = Quadratics(dim=5, dtype=torch.float64)


def simulate(strategy, nodes, *, steps=10, **rest):
    return fs.simulate(strategy, PROBLEM, nodes=nodes, steps=steps, **rest)


def test_time_is_accounted_for_to_the_last_second():
    trace = simulate(
        fs.LocalSGD(period=2),
        3,
        compute=fs.Compute(step="10 ms", stragglers={1: 2.0}),
        network=fs.Network(bandwidth="1 kB/s", latency="1 ms"),
        start_skew=0.0,
    )
    for node in trace.nodes:
        assert node.computing + node.waiting + node.talking == pytest.approx(node.seconds)
    fast, straggler, other = trace.nodes
    assert (fast.computing, straggler.computing) == pytest.approx((0.1, 0.2))
    # Those who are not the straggler wait for it at every mean: half of ten steps' difference each time.
    assert fast.waiting == other.waiting == pytest.approx(0.1)
    assert straggler.waiting == 0.0
    ring = 4 / 3 * PROBLEM.dim * 8
    assert fast.talking == pytest.approx(5 * (round(ring) / 1000 + 4 * 0.001))
    assert trace.busy == pytest.approx(sum(node.computing / node.seconds for node in trace.nodes) / 3)


@pytest.mark.slow
def test_log_normal_compute_has_the_mean_that_was_asked_for():
    trace = simulate(fs.LocalSGD(period=10**6), 1, steps=20_000, compute=fs.Compute(step="1 ms", spread=0.5))
    # Standard error of the mean is about 0.4 %.
    assert trace.seconds / 20_000 == pytest.approx(1e-3, rel=0.02)


def test_pauses_stop_a_node_now_and_then():
    pausing = fs.Compute(step="1 ms", pause="1 s", pauses=0.25)
    trace = simulate(fs.LocalSGD(period=10**6), 1, steps=400, compute=pausing, start_skew=0.0)
    pauses = round(trace.seconds - 0.4)
    assert trace.seconds == pytest.approx(0.4 + pauses)
    assert 60 < pauses < 140


def test_nodes_start_at_different_moments_unless_told_otherwise():
    trace = simulate(fs.LocalSGD(period=10**6), 4, compute=fs.Compute(step="10 ms"), steps=1)
    ends = [node.seconds - node.talking - node.waiting for node in trace.nodes]
    assert len(set(ends)) == 4
    assert all(0.01 <= end <= 0.02 for end in ends)


def test_a_slowdown_lasts_as_long_as_it_says():
    slow = fs.faults.Slowdown(node=0, start="20 ms", duration="50 ms", factor=5.0)
    trace = simulate(fs.LocalSGD(period=10**6), 1, compute=fs.Compute(step="10 ms"), faults=[slow], start_skew=0.0)
    # Steps that begin at 20 ms only: 2 fast, 1 of 50 ms, 7 fast.
    assert trace.seconds == pytest.approx(0.14)


def test_a_crash_ends_a_synchronous_run_and_says_who_was_lost():
    with pytest.raises(fs.LostPeer) as caught:
        simulate(
            fs.LocalSGD(period=2),
            3,
            compute=fs.Compute(step="10 ms"),
            faults=[fs.faults.Crash(node=1, at="55 ms")],
            record_every=1,
        )
    error = caught.value
    assert "lost node 1" in str(error)
    assert error.channel == "model"
    assert error.round is not None
    assert error.time >= 0.055
    # What was recorded until then is not lost.
    assert error.trace.rows[0].step == 0
    assert error.trace.rows[-1].loss < error.trace.rows[0].loss


@dataclass(frozen=True)
class AskAround:
    """Ask every peer at every step; go on without those that are lost."""

    async def run(self, node):
        node.answer("hello", lambda peer, message: message)
        async for _ in node.steps():
            await node.step(await node.gradient(node.params))
            for peer in node.peers():
                try:
                    await node.ask(peer, "hello", note(1.0))
                except fs.LostPeer:
                    node.count("lost")


def test_those_who_catch_a_lost_peer_go_on_without_it():
    trace = simulate(
        AskAround(),
        3,
        steps=20,
        compute=fs.Compute(step="10 ms"),
        network=fs.Network(bandwidth="8 Mbit/s", latency="5 ms"),
        faults=[fs.faults.Crash(node=2, at="100 ms")],
        record_every=5,
    )
    assert [node.steps for node in trace.nodes[:2]] == [20, 20]
    assert trace.nodes[2].steps < 20
    assert trace.nodes[2].seconds == pytest.approx(0.1)
    assert set(trace.models) == {0, 1}
    assert [row.step for row in trace.rows] == [0, 5, 10, 15, 20]


@dataclass(frozen=True)
class Unequal:
    """Nodes 0 and 2 begin one mean more than nodes 1 and 3."""

    async def run(self, node):
        for _ in range(41 + (node.rank % 2 == 0)):
            await node.spawn(node.mean(node.params, "background"))


def test_a_deadlock_names_who_waits_for_what_and_who_has_returned():
    with pytest.raises(fs.Deadlock) as caught:
        simulate(Unequal(), 4, compute=fs.Compute(step="10 ms"))
    text = str(caught.value)
    assert text.startswith("Deadlock at 0.0")
    assert "nodes 0, 2 wait in mean('background'), round 41" in text
    assert text.endswith("nodes 1, 3 have returned.")


@dataclass(frozen=True)
class ReceiveForever:
    """Wait for a message nobody sends."""

    async def run(self, node):
        await node.receive(1 - node.rank)


def test_a_receive_that_never_comes_is_a_deadlock_too():
    with pytest.raises(fs.Deadlock, match="node 0 waits in receive from node 1; node 1 waits in receive from node 0"):
        simulate(ReceiveForever(), 2)


def test_events_at_one_moment_come_in_an_order_drawn_from_the_seed():
    orders = set()

    @dataclass(frozen=True)
    class First:
        async def run(self, node):
            await node.gradient(node.params)
            order.append(node.rank)

    for seed in range(20):
        order: list[int] = []
        fs.simulate(First(), Page(), nodes=3, steps=1, seed=seed, start_skew=0.0)
        orders.add(tuple(order))
    assert len(orders) > 3


def test_records_come_as_they_are_made():
    rows = []
    trace = simulate(fs.LocalSGD(period=3), 2, steps=10, record_every=4, on_row=rows.append)
    assert rows == trace.rows
    assert [row.step for row in rows] == [0, 4, 8, 10]


def test_the_spread_is_the_mean_squared_distance_from_the_average():
    trace = simulate(fs.LocalSGD(period=10), 3, steps=10, record_every=5)
    assert trace.rows[0].spread == 0.0
    assert trace.rows[1].spread > 0.0
    assert trace.rows[2].spread == pytest.approx(0.0, abs=1e-30)


def test_learning_goes_on_over_a_thousand_nodes():
    trace = fs.simulate(fs.LocalSGD(period=4), Quadratics(dim=3), nodes=1000, steps=8)
    assert trace.loss < trace.rows[0].loss
    assert len(trace.nodes) == 1000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"nodes": 0}, "simulate.nodes must be at least 1, got 0"),
        ({"nodes": 2.5}, "simulate.nodes must be a whole number, got 2.5"),
        ({"nodes": 2, "steps": 0}, "simulate.steps must be at least 1, got 0"),
        ({"nodes": 2, "seed": -1}, "simulate.seed must be at least 0, got -1"),
        ({"nodes": 2, "record_every": 0}, "simulate.record_every must be at least 1, got 0"),
        (
            {"nodes": 2, "compute": fs.Compute(step="1 s", stragglers={2: 3.0})},
            "names node 2, but there are nodes 0 to 1",
        ),
        ({"nodes": 2, "faults": [fs.faults.Crash(node=5, at=1)]}, "names node 5, but there are nodes 0 to 1"),
        ({"nodes": 2, "timeout": "soon"}, "simulate.timeout must be a time such as"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(arguments, sentence):
    with pytest.raises((ValueError, TypeError)) as caught:
        fs.simulate(fs.LocalSGD(period=1), PROBLEM, **arguments)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fs.Compute(step="-1 s"), "must be a time such as"),
        (lambda: fs.Compute(step="1 s", spread=-1), "Compute.spread must not be negative, got -1"),
        (lambda: fs.Compute(step="1 s", stragglers={0: 0}), "Compute.stragglers[0] must be positive, got 0"),
        (lambda: fs.Compute(step="1 s", stragglers=[3]), "must map node numbers to values"),
        (lambda: fs.Compute(step="1 s", pauses=2), "Compute.pauses must be between 0 and 1, got 2"),
        (lambda: fs.faults.Crash(node=-1, at=0), "Crash.node must be at least 0, got -1"),
        (lambda: fs.faults.Slowdown(node=0, start=0, duration=1, factor=0), "Slowdown.factor must be positive, got 0"),
        (lambda: fs.simulate(fs.LocalSGD, PROBLEM, nodes=2), "write LocalSGD(...), with parentheses"),
        (lambda: fs.simulate(fs.LocalSGD(period=1), "shakespeare", nodes=2), "simulate.workload must be a workload"),
        (lambda: fs.simulate(PROBLEM, fs.LocalSGD(period=1), nodes=2), "simulate.strategy must be a strategy"),
    ],
)
def test_bad_hardware_and_mixed_up_arguments_are_refused_in_one_sentence(make, sentence):
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert sentence in str(caught.value)


def test_a_peer_that_does_not_exist_is_refused():
    @dataclass(frozen=True)
    class Wrong:
        async def run(self, node):
            node.send(7, note(1.0))

    with pytest.raises(fs.NodeFailed, match="can talk to nodes 0 to 1 other than itself, got 7"):
        simulate(Wrong(), 2, start_skew=0.0, seed=1)


def test_the_users_own_grad_mode_is_left_alone():
    with torch.no_grad():
        simulate(fs.LocalSGD(period=2), 2)
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_a_round_that_is_over_leaves_nothing_for_the_garbage_collector():
    seen = []

    @dataclass(frozen=True)
    class Talk:
        async def run(self, node):
            for _ in range(5):
                mean = await node.mean(node.params)
                seen.append(weakref.ref(mean))
                del mean

    gc.disable()
    try:
        simulate(Talk(), 2, network=fs.Network(bandwidth="1 MB/s"))
        assert sum(mean() is not None for mean in seen) == 0
    finally:
        gc.enable()
