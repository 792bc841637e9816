"""SwarmSGD: against NumPy under a recorded schedule; what it conserves; what it survives."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.node import stream
from flockstep.parts.pair_exchange import PairExchange
from flockstep.strategies import swarm
from flockstep.testing import check_strategy
from flockstep.workloads.convex import Quadratics

ETA, SEED, STEPS = 0.1, 4, 45
SGD = partial(torch.optim.SGD, lr=ETA)
PROBLEM = Quadratics(dim=6, noise=0.5, dtype=torch.float64)
HARDWARE = {
    "network": fs.Network(bandwidth="50 kbit/s", latency="3 ms"),
    "compute": fs.Compute(step="10 ms", spread=0.5, stragglers={0: 3.0}),
}


def gradients_of(size):
    shards = [PROBLEM.shard(rank, size) for rank in range(size)]
    streams = [stream(SEED, rank, "data") for rank in range(size)]

    def gradient(x, shard, rng):
        return shard.curvature * (x - shard.centre) + 0.5 * rng.standard_normal(6)

    return [partial(gradient, shard=s, rng=r) for s, r in zip(shards, streams, strict=True)]


def logging(kind, log):
    """The strategy, saying in which order things happen."""

    @dataclass(frozen=True, kw_only=True)
    class Logged(kind):
        async def run(self, node):
            answer, step, count = node.answer, node.step, node.count

            def logged_answer(topic, handler):
                def logged(peer, message):
                    log.append(("meets", peer, node.rank))
                    return handler(peer, message)

                answer(topic, logged)

            async def logged_step(g):
                log.append(("steps", node.rank))
                await step(g)

            def logged_count(name, amount=1):
                if name == "exchanges":
                    log.append(("gains", node.rank))
                count(name, amount)

            node.answer, node.step, node.count = logged_answer, logged_step, logged_count
            await super().run(node)

    return Logged


def logged_meetings(log):
    """PairExchange, saying in which order things happen."""

    class Logged(PairExchange):
        def _answer(self, peer, message):
            before = self._v.clone()
            reply = super()._answer(peer, message)
            if not torch.equal(before, self._v):
                log.append(("is met", self._node.rank, peer))
            return reply

        async def _meet(self, peer, v):
            log.append(("calls", self._node.rank))
            return await super()._meet(peer, v)

        def take_statistics(self, x):
            log.append(("merges", self._node.rank))
            super().take_statistics(x)

        def show(self, x):
            super().show(x)
            log.append(("ends", self._node.rank))

    return Logged


@pytest.mark.parametrize("every_step", [False, True], ids=["by phase", "every step"])
@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize("period", [1, 2, 7])
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.cases(check=12)
def test_swarm_is_what_the_paper_says_under_the_schedule_that_happened(
    size, period, geometric, every_step, monkeypatch
):
    log = []
    monkeypatch.setattr(swarm, "PairExchange", logged_meetings(log))
    strategy = logging(fs.Swarm, log)(period=period, geometric=geometric, merge_every_step=every_step)
    trace = fs.simulate(strategy, PROBLEM, nodes=size, steps=STEPS, optimizer=SGD, seed=SEED, **HARDWARE)

    x, y, s, said, gained = (np.zeros((size, 6)) for _ in range(5))
    g, done = gradients_of(size), np.zeros(size, bool)
    for what, i, *rest in log:
        if what == "steps":
            x[i] -= ETA * g[i](x[i])
        elif what == "calls":
            said[i] = y[i]
        elif what == "is met":
            (caller,) = rest
            difference = (said[caller] - y[i]) / 2
            gained[caller] = -difference
            y[i] += difference
            if done[i]:
                x[i] = y[i]
        elif what == "gains":
            y[i] += gained[i]
        elif what == "merges":
            y[i] += x[i] - s[i]
            x[i] = s[i] = y[i]
        elif what == "ends":
            # From here on the node only answers, and what it is given is its model's, too.
            done[i] = True
    for rank in range(size):
        np.testing.assert_allclose(trace.models[rank].numpy(), x[rank], rtol=1e-10, atol=1e-12)
    if size > 1:
        assert sum(event[0] == "is met" for event in log) > 3
    merges = [sum(event == ("merges", rank) for event in log) for rank in range(size)]
    if not geometric:
        assert set(merges) == {1 + (STEPS if every_step else STEPS // period)}


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_pull_is_what_the_authors_program_does(size, period):
    log = []
    strategy = logging(fs.SwarmPull, log)(period=period)
    trace = fs.simulate(strategy, PROBLEM, nodes=size, steps=STEPS, optimizer=SGD, seed=SEED, **HARDWARE)
    x, read, g = np.zeros((size, 6)), np.zeros((size, 6)), gradients_of(size)
    for what, i, *rest in log:
        if what == "steps":
            x[i] -= ETA * g[i](x[i])
        elif what == "meets":
            read[i] = x[rest[0]]
        elif what == "gains":
            x[i] = (x[i] + read[i]) / 2
    for rank in range(size):
        np.testing.assert_allclose(trace.models[rank].numpy(), x[rank], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("period", [1, 2, 7])
@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_pairs_average_after_their_local_steps(size, period):
    strategy = fs.SwarmPairs(period=period)
    trace = fs.simulate(strategy, PROBLEM, nodes=size, steps=STEPS, optimizer=SGD, seed=SEED, **HARDWARE)
    x, g = np.zeros((size, 6)), gradients_of(size)
    for k in range(STEPS):
        for i in range(size):
            x[i] -= ETA * g[i](x[i])
        if (k + 1) % period == 0:
            for i, j in strategy.matching(k // period, size).items():
                if i < j:
                    x[i] = x[j] = (x[i] + x[j]) / 2
    for rank in range(size):
        np.testing.assert_allclose(trace.models[rank].numpy(), x[rank], rtol=1e-10, atol=1e-12)


# Each node falls down a slope of its own: nodes do drift apart, however often they meet.
SLOPES_DIFFER = pytest.mark.filterwarnings("ignore:the nodes drift apart")


@dataclass(frozen=True)
class Slope:
    """Every node falls down a slope of its own: what all have moved together is known beforehand."""

    rank: int = 0

    def start(self):
        return torch.zeros(5000, dtype=torch.float64)

    def gradient(self, x, rng):
        return torch.full((5000,), float(self.rank + 1), dtype=torch.float64)

    def loss(self, x):
        return float(x.mean())

    def shard(self, rank, size):
        return Slope(rank)


def moved(trace):
    return sum(float(model.sum()) for model in trace.models.values()) / 5000


CODECS = [
    fs.codecs.Raw(),
    fs.codecs.Cast(),
    fs.codecs.Modular(bits=8),
    fs.codecs.Modular(bits=4),
    fs.codecs.Modular(bits=3),
]


@SLOPES_DIFFER
@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_gradient_enters_once_whatever_the_codec_does(size, codec):
    strategy = fs.Swarm(period=3, geometric=True, codec=codec)
    trace = fs.simulate(strategy, Slope(), nodes=size, steps=STEPS, optimizer=SGD, seed=SEED, **HARDWARE)
    assert moved(trace) == pytest.approx(-ETA * STEPS * size * (size + 1) / 2, rel=1e-9)


@SLOPES_DIFFER
@pytest.mark.slow
@pytest.mark.parametrize("on", ["threads", "processes"])
@pytest.mark.parametrize("codec", [fs.codecs.Raw(), fs.codecs.Modular(bits=8)], ids=repr)
@pytest.mark.cases(test=1)
def test_nothing_is_lost_on_real_nodes_either(codec, on):
    strategy = fs.Swarm(period=2, codec=codec)
    # Steps of next to nothing: a call is longer than dozens of them.
    trace = fs.launch(strategy, Slope(), nodes=3, steps=2000, optimizer=SGD, timeout=60, on=on)
    assert moved(trace) == pytest.approx(-ETA * 2000 * 6, rel=1e-9)
    assert all(node.counts["exchanges"] > 0 for node in trace.nodes)


@pytest.mark.parametrize(
    "strategy",
    [
        fs.Swarm(period=2),
        fs.Swarm(period=3, geometric=True, topology=fs.topologies.Ring()),
        fs.SwarmPairs(period=2),
        fs.SwarmPull(period=1),
    ],
    ids=repr,
)
@pytest.mark.slow
@pytest.mark.cases(test=2)
def test_the_laws(strategy):
    check_strategy(strategy)


@pytest.mark.slow
def test_a_straggler_costs_the_others_nothing():
    seconds = {}
    for factor in (1.0, 4.0):
        compute = fs.Compute(step="10 ms", stragglers={3: factor})
        network = fs.Network(bandwidth="100 Mbit/s", latency="1 ms")
        trace = fs.simulate(
            fs.Swarm(period=2), PROBLEM, nodes=8, steps=STEPS, optimizer=SGD, network=network, compute=compute
        )
        seconds[factor] = [node.computing for node in trace.nodes if node.rank != 3]
        assert all(node.waiting == 0.0 for node in trace.nodes if node.rank != 3)
    assert seconds[1.0] == pytest.approx(seconds[4.0])


def test_a_dead_partner_is_passed_over_and_the_rest_go_on():
    faults = [fs.faults.Crash(node=1, at="100 ms"), fs.faults.MessageLoss(share=0.2)]
    trace = fs.simulate(
        fs.Swarm(period=1),
        PROBLEM,
        nodes=4,
        steps=STEPS,
        optimizer=SGD,
        faults=faults,
        timeout="30 ms",
        **HARDWARE,
    )
    assert [node.steps for node in trace.nodes if node.rank != 1] == [STEPS] * 3
    assert sum(node.counts.get("partners lost", 0) for node in trace.nodes) > 0


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"Swarm\.period must be at least 1, got 0"):
        fs.Swarm(period=0)
    with pytest.raises(TypeError, match=r"Swarm\.codec must be a codec"):
        fs.Swarm(codec="8 bits")


def test_pairs_take_no_argument_they_would_ignore():
    for ignored in ({"geometric": True}, {"topology": fs.topologies.Ring()}):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            fs.SwarmPairs(period=2, **ignored)
