"""Pairs that meet one at a time: no meeting drives nodes apart, none is lost or counted twice, whatever happens."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import flockstep as fs
from flockstep.message import NOTHING
from flockstep.parts import pair_exchange
from flockstep.parts.codec_trust import marked
from flockstep.strategies import swarm
from flockstep.workloads.convex import Quadratics

SGD = partial(torch.optim.SGD, lr=1.0)
DIM = 7


@dataclass(frozen=True)
class Scattered:
    """Every node's first step leads somewhere else; there is no other."""

    rank: int = -1

    def start(self):
        return torch.zeros(DIM, dtype=torch.float64)

    def gradient(self, x, rng):
        # Where it stands at the start nobody has been since: nodes meet in the middle of places that are not it.
        return -place(self.rank) if not x.any() else torch.zeros_like(x)

    def loss(self, x):
        return float(x.square().sum())

    def shard(self, rank, size):
        return replace(self, rank=rank)


def place(rank):
    return torch.from_numpy(np.random.default_rng([7, rank]).standard_normal(DIM))


class Witness(pair_exchange.PairExchange):
    """Sees every meeting, and what it does to the flock."""

    def __init__(self, node, *arguments):
        super().__init__(node, *arguments)
        self.node, self.due, self.settled = node, torch.zeros(DIM, dtype=torch.float64), False
        self.flock[node.rank] = self  # type: ignore[attr-defined]

    def _answer(self, peer, message):
        v = self._v.clone()
        reply = super()._answer(peer, message)
        if not torch.equal(self._v, v):
            caller = self.flock[peer]  # type: ignore[attr-defined]
            caller.due = v - self._v
            # Its first step, the only one that leads anywhere, may have come since it called. Nothing else has.
            if caller.stands:
                # What one gives the other takes: the flock's sum of squared deviations falls by what the pair's does.
                self.seen.append((pair(caller._v, v), pair(caller._v + caller.due, self._v)))  # type: ignore[attr-defined]
        return reply

    async def _meet(self, peer, v):
        # Not in the middle of a merge, which has taken its first step in, and not shown it yet.
        with self.node.undisturbed():
            self.stands = self.settled and torch.allclose(v, self._v, atol=1e-12, rtol=0)
        try:
            return await super()._meet(peer, v)
        finally:
            self.due = torch.zeros_like(self.due)

    def take_statistics(self, x):
        """A part of every merge."""
        super().take_statistics(x)
        self.settled = True

    def _apart(self):
        """The sum of squared deviations, with what callers will have as soon as their replies are there."""
        held = torch.stack([each._v + each.due for each in list(self.flock.values()) if living(each.node)])  # type: ignore[attr-defined]
        return squares(held)


def living(node):
    return getattr(node, "alive", True)


def pair(one, other):
    return squares(torch.stack([one, other]))


def squares(held):
    return float((held - held.mean(0)).square().sum())


def held_by(trace):
    return torch.stack([trace.models[rank] for rank in sorted(trace.models)])


def scattered(size):
    return torch.stack([place(rank) for rank in range(size)])


@pytest.fixture
def witness(monkeypatch):
    """Afterwards it has ``seen``, for each meeting, how far apart the two were before and after it."""
    told = type("Told", (Witness,), {"flock": {}, "seen": []})
    monkeypatch.setattr(swarm, "PairExchange", told)
    return told


def run(strategy, size, steps, *, latency="5 ms", bandwidth="1 Gbit/s", uneven=False, **options):
    return fs.simulate(
        strategy,
        Scattered(),
        nodes=size,
        steps=steps,
        optimizer=SGD,
        network=fs.Network(bandwidth=bandwidth, latency=latency),
        compute=fs.Compute(step="10 ms", spread=0.3, stragglers={0: 3.0}) if uneven else fs.Compute(step="10 ms"),
        # Longer than six messages take one after the other on the slowest link, there and back.
        timeout="2 s",
        record_every=steps,
        **options,
    )


def none_came_apart(witness):
    assert witness.seen
    for before, after in witness.seen:
        assert after <= before * (1 + 1e-9) + 1e-18


ANY_WITNESS = [HealthCheck.function_scoped_fixture]


@settings(max_examples=30, deadline=None, suppress_health_check=ANY_WITNESS)
@given(
    size=st.integers(2, 6),
    latency=st.sampled_from(["0.1 ms", "5 ms", "90 ms"]),
    bandwidth=st.sampled_from(["20 kbit/s", "1 Gbit/s"]),
    uneven=st.booleans(),
    start_skew=st.sampled_from([None, 0.0]),
    loss=st.sampled_from([0.0, 0.2]),
    crashes=st.sampled_from([{}, {"at": "170 ms"}, {"at": "170 ms", "back_after": "300 ms"}]),
    topology=st.sampled_from([fs.topologies.Complete(), fs.topologies.Ring()]),
    period=st.integers(1, 3),
    seed=st.integers(0, 2**20),
)
# Two nodes on a slow link that called each other at once five times in a row, and never met.
@example(
    size=2,
    latency="90 ms",
    bandwidth="20 kbit/s",
    uneven=False,
    start_skew=None,
    loss=0.0,
    crashes={},
    topology=fs.topologies.Complete(),
    period=1,
    seed=826,
)
# Three meetings at one node on a slow link: under a timeout shorter than they take, in step, none of them was settled.
@example(
    size=6,
    latency="90 ms",
    bandwidth="20 kbit/s",
    uneven=True,
    start_skew=0.0,
    loss=0.2,
    crashes={},
    topology=fs.topologies.Complete(),
    period=1,
    seed=6,
)
@pytest.mark.slow
def test_no_meeting_drives_nodes_apart(witness, size, loss, crashes, topology, period, **options):
    witness.flock.clear()
    witness.seen.clear()
    # Losses end, so that all can be settled.
    faults = [fs.faults.MessageLoss(share=loss, duration="1 s")] if loss else []
    if crashes and size > 3:
        faults.append(fs.faults.Crash(node=1, **crashes))
    trace = run(fs.Swarm(period=period, topology=topology), size, 300, faults=faults, **options)
    none_came_apart(witness)
    if not crashes:
        # Every reply that was lost came at last, and once: the sum is what was scattered.
        torch.testing.assert_close(held_by(trace).sum(0), scattered(size).sum(0), atol=1e-12, rtol=0)


@pytest.mark.parametrize("hardware", ["in step", "uneven", "slow", "lossy"])
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.cases(check=1, test=2)
def test_nodes_come_together(size, hardware):
    options = {
        "in step": {"start_skew": 0.0},
        "uneven": {"uneven": True},
        "slow": {"latency": "60 ms"},
        "lossy": {"faults": [fs.faults.MessageLoss(share=0.1)]},
    }
    trace = run(fs.Swarm(), size, 1200, **options[hardware])
    assert squares(held_by(trace)) < 1e-3 * squares(scattered(size))


@settings(max_examples=10, deadline=None, suppress_health_check=ANY_WITNESS)
@given(
    size=st.integers(2, 6),
    topology=st.sampled_from([fs.topologies.Complete(), fs.topologies.Ring()]),
    period=st.integers(1, 3),
    seed=st.integers(0, 2**20),
)
@pytest.mark.slow
def test_on_threads_too_they_only_come_together(witness, size, topology, period, seed):
    """However long that takes on a busy machine: they stop when they have, or have met far too often."""
    witness.flock.clear()
    witness.seen.clear()
    near = 1e-3 * squares(scattered(size))

    def is_enough():
        flock = list(witness.flock.values())
        are_together = len(flock) == size and all(each.settled for each in flock) and flock[0]._apart() < near
        return are_together or len(witness.seen) > 2000

    strategy = fs.Swarm(period=period, topology=topology)
    options = {"nodes": size, "steps": 10**7, "optimizer": SGD, "timeout": 60, "seed": seed}
    trace = fs.launch(strategy, Scattered(), on="threads", stop=is_enough, **options)
    none_came_apart(witness)
    assert squares(held_by(trace)) < near
    torch.testing.assert_close(held_by(trace).sum(0), scattered(size).sum(0), atol=1e-12, rtol=0)


PAIRS = [
    fs.Swarm,
    fs.SwarmPairs,
    partial(fs.Gossip, topology=fs.topologies.Complete()),
    partial(fs.NoLoCo, period=1, outer_lr=1.0, outer_momentum=0.0),
]


@pytest.mark.cases(test=2)
@pytest.mark.slow
@pytest.mark.parametrize("codec", [fs.codecs.Cast(), *(fs.codecs.Modular(bits=bits) for bits in (8, 4, 3))], ids=repr)
@pytest.mark.parametrize("kind", PAIRS)
def test_with_a_codec_they_end_within_its_error(kind, codec):
    """Three bits, and four in Gossip, once drove them apart for ever: an error may be larger than the difference."""
    apart = [squares(held_by(run(kind(codec=codec), 4, steps))) for steps in (100, 200)]
    assert apart[1] < 0.02 * squares(scattered(4))
    assert apart[1] < apart[0] + 1e-4


@pytest.mark.parametrize("strategy", [fs.Swarm(), fs.ADPSGD()], ids=repr)
@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize(("latency", "skew"), [("200 ms", None), ("1 ms", 0.0)], ids=["slow link", "in step"])
@pytest.mark.cases(test=6)
@pytest.mark.slow
def test_spread_is_bounded_where_calls_cross(strategy, size, latency, skew):
    """They once swapped models for ever, or drove each other apart without bound."""
    trace = fs.simulate(
        strategy,
        Quadratics(dim=10),
        nodes=size,
        steps=300,
        record_every=20,
        optimizer=partial(torch.optim.SGD, lr=0.05),
        network=fs.Network(bandwidth="1 Gbit/s", latency=latency),
        compute=fs.Compute(step="20 ms"),
        start_skew=skew,
    )
    # Each alone would end at its own optimum: that is as far as nodes may be.
    alone = torch.stack([torch.from_numpy(Quadratics(dim=10).shard(rank, size).centre) for rank in range(size)])
    furthest = float((alone - alone.mean(0)).square().sum(1).mean())
    assert trace.rows[-1].spread < furthest
    assert max(row.spread for row in trace.rows) < 1.5 * furthest
    assert sum(node.counts["exchanges"] for node in trace.nodes) > 2 * size


class Standing:
    """A node that is asked, and does nothing itself."""

    rank, incarnation, trained, step_count = 1, 0, DIM, 0
    rng = np.random.default_rng(0)
    undisturbed = staticmethod(nullcontext)

    def __init__(self):
        self.handlers = {}

    def answer(self, topic, handler):
        self.handlers[topic] = handler

    def call(self, number, value):
        message = fs.codecs.Raw().encode(torch.full((DIM,), value), self.rng)
        return self.handlers["topic"](0, marked(message, 0.0, number))


def test_a_reply_that_was_lost_is_given_again_and_counts_once():
    node, v = Standing(), torch.zeros(DIM)
    pair_exchange.PairExchange(node, "topic", v, fs.codecs.Raw(), fs.topologies.Complete())
    first = node.call(1, 8.0)
    assert torch.equal(v, torch.full((DIM,), 4.0))
    again = node.call(1, 8.0)
    assert torch.equal(v, torch.full((DIM,), 4.0))
    assert torch.equal(again.data, first.data)
    node.handlers["topic thanks"](0, marked(NOTHING, 0.0, 1))
    node.call(2, 8.0)
    assert torch.equal(v, torch.full((DIM,), 6.0))


def test_who_calls_between_the_last_merge_and_the_end_is_heard():
    node, v, x = Standing(), torch.zeros(DIM), torch.zeros(DIM)
    meetings = pair_exchange.PairExchange(node, "topic", v, fs.codecs.Raw(), fs.topologies.Complete())
    with pytest.raises(StopIteration):
        meetings.close().send(None)
    node.call(1, 8.0)
    meetings.show(x)
    assert torch.equal(x, torch.full((DIM,), 4.0))
    node.call(2, 0.0)
    assert torch.equal(x, torch.full((DIM,), 2.0))
