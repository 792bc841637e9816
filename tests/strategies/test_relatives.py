"""Gossip, Choco, SGP, ADPSGD and NoLoCo: against NumPy; what they conserve; in every place; in a user's loop."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import relatives_oracles as oracles
import torch
from torch import nn

import flockstep as fs
from flockstep.message import NOTHING
from flockstep.node import stream
from flockstep.parts.partners import matching
from flockstep.strategies.choco import fidelity, safe_step
from flockstep.testing import check_strategy, check_synchronous
from flockstep.workloads.convex import Quadratics

ETA, SEED, STEPS = 0.1, 4, 31
SGD = partial(torch.optim.SGD, lr=ETA)
PROBLEM = Quadratics(dim=6, noise=0.5, dtype=torch.float64)
START = np.zeros(6)
HALF = fs.codecs.Cast(dtype="fp16")
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


def run(strategy, size, workload=PROBLEM, optimizer=SGD, **options):
    return fs.simulate(
        strategy, workload, nodes=size, steps=STEPS, optimizer=optimizer, seed=SEED, **HARDWARE, **options
    )


def assert_models(trace, expected):
    for rank, model in enumerate(expected):
        np.testing.assert_allclose(trace.models[rank].numpy(), model, rtol=1e-12, atol=1e-12)


# The equations -------------------------------------------------------------------------------------------------------


OVERLAPPED = pytest.mark.parametrize("overlap", [False, True])


@OVERLAPPED
@pytest.mark.parametrize("size", [1, 2, 5])
def test_gossip(size, overlap):
    expected = oracles.gossip(START, gradients_of(size), STEPS, ETA, oracles.ring(size), overlap=overlap)
    assert_models(run(fs.Gossip(overlap=overlap), size), expected)


@OVERLAPPED
def test_gossip_in_few_bits(overlap):
    expected = oracles.gossip(START, gradients_of(5), STEPS, ETA, oracles.ring(5), oracles.half, overlap=overlap)
    assert_models(run(fs.Gossip(codec=HALF, overlap=overlap), 5), expected)


@OVERLAPPED
def test_gossip_over_unequal_edges_with_weight_decay(overlap):
    expected = oracles.gossip(START, gradients_of(5), STEPS, ETA, oracles.star(5), decay=0.3, overlap=overlap)
    strategy = fs.Gossip(topology=fs.topologies.Star(), overlap=overlap)
    assert_models(run(strategy, 5, optimizer=partial(SGD, weight_decay=0.3)), expected)


@pytest.mark.parametrize("gamma", [0.3, 1.0])
@pytest.mark.parametrize("coded", ["exact", "half"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_choco(size, coded, gamma):
    strategy = fs.Choco(codec={"exact": fs.codecs.Raw(), "half": HALF}[coded], consensus=gamma)
    w = oracles.ring(size)
    expected = oracles.choco(START, gradients_of(size), STEPS, ETA, w, gamma, getattr(oracles, coded))
    assert_models(run(strategy, size), expected)


def test_choco_over_unequal_edges():
    expected = oracles.choco(START, gradients_of(5), STEPS, ETA, oracles.star(5), 0.5, oracles.half)
    assert_models(run(fs.Choco(topology=fs.topologies.Star(), codec=HALF, consensus=0.5), 5), expected)


@dataclass(frozen=True, kw_only=True)
class Lopsided(fs.SGP):
    """A graph in which some are given much more than they give; remembers its nodes."""

    nodes: list

    def targets(self, rank, size, round):
        return tuple({1 % size, 2 % size} - {0}) if rank == 0 else (0,)

    async def run(self, node):
        self.nodes.append(node)
        await super().run(node)


@OVERLAPPED
@pytest.mark.parametrize("size", [1, 2, 4, 5, 6])
def test_gradient_push(size, overlap):
    graph = oracles.halves_to_powers_of_two
    expected, _, weights = oracles.gradient_push(START, gradients_of(size), STEPS, ETA, graph, overlap)
    np.testing.assert_allclose(weights, 1.0)
    assert_models(run(fs.SGP(overlap=overlap), size), expected)


@OVERLAPPED
@pytest.mark.parametrize("size", [2, 3, 6])
def test_gradient_push_where_weights_matter(size, overlap):
    nodes = []
    expected, xs, weights = oracles.gradient_push(START, gradients_of(size), STEPS, ETA, oracles.all_to_node_0, overlap)
    assert size == 2 or np.ptp(weights) > 0.3
    assert_models(run(Lopsided(nodes=nodes, overlap=overlap), size), expected)
    mass = {node.rank: node.kept["mass"] for node in nodes}
    for rank in range(size):
        np.testing.assert_allclose(mass[rank].numpy(), [*xs[rank], *weights[rank]], rtol=1e-12, atol=1e-12)
    assert float(sum(each[-1] for each in mass.values())) == pytest.approx(size, rel=1e-14)


@pytest.mark.parametrize("period", [1, 4, 100])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_noloco(size, period):
    strategy = fs.NoLoCo(period=period, matching_seed=3)
    pairs = [matching(3, round, size) for round in range(STEPS)]
    expected = oracles.noloco(START, gradients_of(size), STEPS, ETA, period, 0.7, 0.5, pairs)
    assert_models(run(strategy, size), expected)


@pytest.mark.parametrize("topology", [fs.topologies.Complete(), fs.topologies.Ring()], ids=repr)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_adpsgd_is_swarm_with_one_local_step(size, topology):
    """Whose oracle is in test_swarm.py."""
    one, other = run(fs.ADPSGD(topology=topology), size), run(fs.Swarm(topology=topology), size)
    assert all(torch.equal(one.models[rank], other.models[rank]) for rank in range(size))
    assert size == 1 or sum(node.counts["exchanges"] for node in one.nodes) > size


# Laws ----------------------------------------------------------------------------------------------------------------

SYNCHRONOUS = {
    "Gossip": fs.Gossip(),
    "Choco": fs.Choco(),
    "Choco slowly": fs.Choco(topology=fs.topologies.Star(), consensus=0.3),
    "SGP": fs.SGP(),
    # Otherwise an outer step is not the sum of the inner ones.
    "NoLoCo": fs.NoLoCo(period=4, outer_lr=1.0, outer_momentum=0.0),
}


@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.cases(test=2)
@pytest.mark.slow
def test_the_laws(name):
    check_strategy(SYNCHRONOUS[name])
    check_synchronous(SYNCHRONOUS[name], nodes=(2, 6))


@pytest.mark.parametrize("strategy", [fs.ADPSGD(), fs.ADPSGD(topology=fs.topologies.Ring())], ids=repr)
@pytest.mark.slow
def test_the_laws_of_one_sided_strategies(strategy):
    check_strategy(strategy)


@pytest.mark.parametrize(
    "strategy",
    [
        fs.Gossip(codec=HALF),
        fs.Choco(codec=fs.codecs.Stochastic(bits=4)),
        fs.NoLoCo(period=4),
        fs.NoLoCo(period=4, codec=HALF),
    ],
    ids=repr,
)
def test_the_hardware_leaves_the_numbers_alone_with_codecs_too(strategy):
    check_synchronous(strategy, nodes=(5,))


# What is conserved ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turning:
    """Pairs that change from round to round; with an odd number, another node is alone each time."""

    def peers(self, rank, size, round=0):
        partner = (round - rank) % size
        return () if partner == rank else (partner,)

    def weights(self, rank, size, round=0):
        peers = self.peers(rank, size, round)
        return {rank: 1.0 - 0.5 * len(peers), **dict.fromkeys(peers, 0.5)}


# Each node falls down a slope of its own: nodes do drift apart, however often they meet.
SLOPES_DIFFER = pytest.mark.filterwarnings("ignore:the nodes drift apart")


@dataclass(frozen=True)
class Slope:
    """Every node falls down a slope of its own: what all have moved together is known beforehand."""

    rank: int = 0

    def start(self):
        return torch.linspace(0, 0.3, 2000, dtype=torch.float64)

    def gradient(self, x, rng):
        return torch.full((2000,), float(self.rank + 1), dtype=torch.float64)

    def loss(self, x):
        return float(x.mean())

    def shard(self, rank, size):
        return Slope(rank)


def assert_every_gradient_entered_once(trace, size, steps=STEPS):
    moved = torch.stack(list(trace.models.values())) - Slope().start()
    assert float(moved.sum()) / 2000 == pytest.approx(-ETA * steps * size * (size + 1) / 2, rel=1e-9)


CODECS = [fs.codecs.Raw(), fs.codecs.Cast(), fs.codecs.Stochastic(bits=4), fs.codecs.Stochastic(bits=2)]
OF_MODELS = [*CODECS, fs.codecs.Modular(bits=8), fs.codecs.Modular(bits=4)]


# Outer momentum adds to a sum of steps, so it is off where that sum is counted.
SUMMING_NOLOCO = partial(fs.NoLoCo, period=4, outer_lr=1.0, outer_momentum=0.0)


def mixed(codec, topology=fs.topologies.Ring(), period=2):
    return fs.LocalSGD(period=period, average=fs.averages.Mixed(topology=topology, codec=codec))


@SLOPES_DIFFER
@pytest.mark.parametrize("codec", OF_MODELS, ids=repr)
@pytest.mark.parametrize("kind", [fs.Gossip, partial(fs.Gossip, overlap=True), fs.ADPSGD, SUMMING_NOLOCO, mixed])
@pytest.mark.cases(check=4, test=4)
def test_every_gradient_enters_once_whatever_the_codec_does(kind, codec):
    assert_every_gradient_entered_once(run(kind(codec=codec), 5, Slope()), 5)


@pytest.mark.parametrize("codec", [*CODECS, fs.codecs.TopK(fraction=0.1)], ids=repr)
def test_every_gradient_enters_once_whatever_a_codec_of_changes_does(codec):
    assert_every_gradient_entered_once(run(fs.Choco(codec=codec), 5, Slope()), 5)


@OVERLAPPED
@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_gradient_push_loses_nothing(size, overlap):
    assert_every_gradient_entered_once(run(fs.SGP(overlap=overlap), size, Slope()), size)


@pytest.mark.parametrize(
    "kind",
    [
        partial(fs.NoLoCo, period=2, outer_lr=1.0, outer_momentum=0.0),
        # Who is far away is met every second or third round only, and by then further than anybody was.
        partial(fs.Gossip, topology=Turning()),
        partial(mixed, topology=Turning(), period=1),
    ],
)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_lattice_that_was_too_small_is_mended(kind, bits):
    trace = run(kind(codec=fs.codecs.Modular(bits=bits)), 5, Slope())
    assert_every_gradient_entered_once(trace, 5)
    assert sum(node.counts.get("blocks out of reach", 0) for node in trace.nodes) > 0


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.cases(check=1)
def test_a_lattice_that_was_too_small_is_mended_between_two(bits):
    hardware = HARDWARE | {"network": fs.Network(bandwidth="1 Mbit/s", latency="3 ms")}
    strategy = fs.ADPSGD(codec=fs.codecs.Modular(bits=bits))
    trace = fs.simulate(strategy, Slope(), nodes=5, steps=100, optimizer=SGD, seed=SEED, **hardware)
    assert_every_gradient_entered_once(trace, 5, 100)
    assert sum(node.counts.get("blocks out of reach", 0) for node in trace.nodes) > 0


@pytest.mark.cases(test=2)
@SLOPES_DIFFER
@pytest.mark.slow
@pytest.mark.parametrize("on", ["threads", "processes"])
@pytest.mark.parametrize("codec", [fs.codecs.Raw(), fs.codecs.Modular(bits=8)], ids=repr)
def test_adpsgd_loses_nothing_on_real_nodes_either(codec, on):
    # Steps of next to nothing: a call is longer than dozens of them.
    trace = fs.launch(fs.ADPSGD(codec=codec), Slope(), nodes=3, steps=2000, optimizer=SGD, timeout=60, on=on)
    assert_every_gradient_entered_once(trace, 3, 2000)
    assert all(node.counts["exchanges"] > 0 for node in trace.nodes)


# Choco's codecs ------------------------------------------------------------------------------------------------------


def test_fidelity_is_the_share_of_a_random_vector_that_a_codec_keeps():
    like = torch.zeros(2000)
    assert fidelity(fs.codecs.Raw(), like) == pytest.approx(1.0)
    ladder = [fidelity(fs.codecs.Stochastic(bits=bits), like) for bits in (2, 3, 4, 8)]
    assert ladder == sorted(ladder)
    assert 0 < ladder[0] < 0.5
    assert fidelity(fs.codecs.Raw(), torch.zeros(0)) == 1.0
    # Of a Gaussian vector, the largest tenth of the coordinates holds a bit less than half of the squares.
    assert 0.4 < fidelity(fs.codecs.TopK(fraction=0.1), like) < 0.5


def test_the_worse_the_codec_the_smaller_the_step_that_is_safe():
    assert safe_step(1.0) == 1.0
    steps = [safe_step(quality) for quality in (0.01, 0.1, 0.5, 0.9, 1.0)]
    assert steps == sorted(steps)
    for quality, gamma in zip((0.01, 0.1, 0.5), steps, strict=False):
        # At the largest eigenvalue there is, 2, the map of the two norms neither grows nor shrinks.
        g, r = 2 * gamma, (1 - quality) ** 0.5
        radius = np.abs(np.linalg.eigvals([[1 - g, g * r], [g, (1 + g) * r]])).max()
        assert radius == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("codec", "topology", "size"),
    [
        (fs.codecs.Stochastic(bits=4), fs.topologies.Ring(), 5),
        (fs.codecs.Stochastic(bits=2), fs.topologies.Ring(), 5),
        # Going as far as the codec keeps of a vector, 0.45, would be too far here.
        (fs.codecs.TopK(fraction=0.1), fs.topologies.Hypercube(), 4),
    ],
    ids=repr,
)
@pytest.mark.slow
@pytest.mark.cases(test=1)
def test_choco_agrees_however_coarse_the_codec(codec, topology, size):
    """Nodes that are pulled apart and then left alone come together again, where plain gossip stalls."""

    def spread(strategy):
        # No gradient after step 20: what is left is the averaging itself.
        return fs.simulate(strategy, Pulled(steps=20), nodes=size, steps=220, optimizer=SGD, record_every=20).rows

    rows = spread(fs.Choco(codec=codec, topology=topology))
    apart, end = rows[1].spread, rows[-1].spread
    assert apart > 0.1
    assert end < 1e-6 * apart
    if not isinstance(codec, fs.codecs.TopK):
        assert spread(fs.Gossip(codec=codec, topology=topology))[-1].spread > 1e3 * end


class Pulled:
    """Every node is pulled its own way for some steps, and then no more."""

    def __init__(self, *, steps, rank=0):
        self.steps, self.rank, self.taken = steps, rank, 0

    def start(self):
        return torch.linspace(-1, 1, 300, dtype=torch.float64)

    def gradient(self, x, rng):
        self.taken += 1
        pull = torch.from_numpy(np.random.default_rng(self.rank).standard_normal(300))
        return pull if self.taken <= self.steps else torch.zeros_like(x)

    def loss(self, x):
        return 0.0

    def shard(self, rank, size):
        return Pulled(steps=self.steps, rank=rank)


# Time ----------------------------------------------------------------------------------------------------------------


HIDDEN = {fs.Gossip(): False, fs.SGP(): False, fs.Choco(): False}
HIDDEN |= {fs.Gossip(overlap=True): True, fs.SGP(overlap=True): True}


@pytest.mark.parametrize(("strategy", "hidden"), HIDDEN.items(), ids=repr)
def test_messages_travel_while_the_gradient_is_computed(strategy, hidden):
    clock = {
        "network": fs.Network(bandwidth="1 Gbit/s", latency="6 ms"),
        "compute": fs.Compute(step="10 ms"),
        "start_skew": 0,
    }
    trace = fs.simulate(strategy, PROBLEM, nodes=5, steps=10, optimizer=SGD, **clock)
    # Hidden, except for the last one, which nothing follows.
    assert trace.seconds == pytest.approx(0.106 if hidden else 0.16, abs=1e-3)


def test_a_straggler_costs_the_others_nothing_in_adpsgd():
    compute = fs.Compute(step="10 ms", stragglers={3: 4.0})
    network = fs.Network(bandwidth="100 Mbit/s", latency="1 ms")
    trace = fs.simulate(
        fs.ADPSGD(), PROBLEM, nodes=6, steps=STEPS, optimizer=SGD, network=network, compute=compute, start_skew=0
    )
    for node in trace.nodes:
        if node.rank != 3:
            # All but the last average are over before the gradient is.
            assert node.computing == pytest.approx(STEPS * 0.01)
            assert node.waiting < 0.005


def test_a_dead_partner_is_passed_over_and_the_rest_go_on():
    faults = [fs.faults.Crash(node=1, at="100 ms"), fs.faults.MessageLoss(share=0.2)]
    trace = run(fs.ADPSGD(), 4, faults=faults, timeout="30 ms")
    assert [node.steps for node in trace.nodes if node.rank != 1] == [STEPS] * 3
    assert sum(node.counts.get("partners lost", 0) for node in trace.nodes) > 0


# Every place ---------------------------------------------------------------------------------------------------------

PLACES = {
    "Gossip": fs.Gossip(),
    "Gossip coded": fs.Gossip(codec=fs.codecs.Stochastic(bits=8)),
    "Gossip coded, overlapped": fs.Gossip(codec=fs.codecs.Stochastic(bits=8), overlap=True),
    "Gossip in a lattice": fs.Gossip(codec=fs.codecs.Modular(bits=8), topology=Turning()),
    "Gossip in a lattice, overlapped": fs.Gossip(codec=fs.codecs.Modular(bits=8), topology=Turning(), overlap=True),
    "mixed in a lattice": mixed(fs.codecs.Modular(bits=8)),
    "Choco": fs.Choco(codec=fs.codecs.Stochastic(bits=4)),
    "SGP": fs.SGP(),
    "SGP, overlapped": fs.SGP(overlap=True),
    "NoLoCo": fs.NoLoCo(period=7),
    "NoLoCo coded": fs.NoLoCo(period=7, codec=fs.codecs.Modular(bits=8)),
}


def assert_agree(name, backend):
    problem, heavy_ball = Quadratics(dim=40), partial(torch.optim.SGD, lr=0.1, momentum=0.5)

    def launch(place):
        return place(PLACES[name], problem, nodes=4, steps=30, optimizer=heavy_ball, seed=11, record_every=9)

    virtual, real = launch(fs.simulate), launch(backend)
    for rank in virtual.models:
        difference = (virtual.models[rank] - real.models[rank]).norm() / virtual.models[rank].norm()
        assert difference <= 1e-6
    for a, b in zip(virtual.rows, real.rows, strict=True):
        assert a.step == b.step
        # While a row is recorded the next round may be under way. In a lattice every node tells its partner of that
        # round that it could read what came: on real processes it has come by then, or not.
        words = range(5) if name == "Gossip in a lattice, overlapped" else (0,)
        assert abs(a.bytes - b.bytes) in [count * NOTHING.nbytes / 4 for count in words]
        assert a.loss == pytest.approx(b.loss, rel=1e-6)
    for a, b in zip(virtual.nodes, real.nodes, strict=True):
        assert (a.bytes_sent, a.bytes_received, a.counts) == (b.bytes_sent, b.bytes_received, b.counts)


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.cases(check=3)
def test_threads_agree_with_the_simulator(name):
    assert_agree(name, partial(fs.launch, on="threads"))


@pytest.mark.cases(test=2)
@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_processes_agree_with_the_simulator(name):
    assert_agree(name, fs.launch)


# In a user's loop ----------------------------------------------------------------------------------------------------

IN_LOOPS = {
    "Gossip": fs.Gossip(),
    "Gossip, overlapped": fs.Gossip(overlap=True),
    "Choco": fs.Choco(codec=fs.codecs.Stochastic(bits=4)),
    "SGP": fs.SGP(),
    "SGP, overlapped": fs.SGP(overlap=True),
    "ADPSGD": fs.ADPSGD(),
    "NoLoCo": fs.NoLoCo(period=10),
}
OPTIMIZERS = {
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.05),
}


def data(rank):
    generator = torch.Generator().manual_seed(1000 + rank)
    x = torch.randn(48, 4, generator=generator)
    return x, x.sum(1, keepdim=True) + 0.1 * torch.randn(48, 1, generator=generator)


def normed_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def plain_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def iterate(model, optimizer, steps, rank=0):
    x, y = data(rank)
    for k in range(steps):
        rows = slice(k % 4 * 12, k % 4 * 12 + 12)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", IN_LOOPS)
@pytest.mark.cases(test=5)
@pytest.mark.slow
def test_a_users_loop_trains(name, optimizer):
    def train():
        model = plain_model()
        stepper = OPTIMIZERS[optimizer](model.parameters())
        with fs.join(model, stepper, IN_LOOPS[name]) as node:
            # NoLoCo's outer step comes every ten, and swings at first.
            iterate(model, stepper, 150 if name == "NoLoCo" else 60, fs.rank())
            node.meet()
            return node.average_model() if fs.rank() == 0 else None

    trace = fs.simulate(train, nodes=3, **HARDWARE)
    everything = [torch.cat(part) for part in zip(*(data(rank) for rank in range(3)), strict=True)]
    with torch.no_grad():
        error = nn.functional.mse_loss(trace.results[0](everything[0]), everything[1])
    # It explains more than 95% of what there is to explain.
    assert float(error) < 0.05 * float(everything[1].var())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", [name for name in IN_LOOPS if name != "NoLoCo"])
def test_alone_it_is_the_loop_without_the_line_and_batch_norm_moves_on(name, optimizer):
    bare, joined = normed_model(), normed_model()
    iterate(bare, OPTIMIZERS[optimizer](bare.parameters()), 20)
    stepper = OPTIMIZERS[optimizer](joined.parameters())
    with fs.join(joined, stepper, IN_LOOPS[name]):
        iterate(joined, stepper, 20)
    for (name, one), other in zip(bare.state_dict().items(), joined.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, msg=name, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Gossip", "Gossip, overlapped", "SGP", "SGP, overlapped", "ADPSGD"])
@pytest.mark.slow
def test_batch_norm_moves_on_together_too(name):
    """Models that travel while the forward pass changes statistics must not undo that change."""

    def train():
        model = normed_model()
        stepper = torch.optim.SGD(model.parameters(), lr=0.0)
        with fs.join(model, stepper, IN_LOOPS[name]):
            iterate(model, stepper, 40, fs.rank())
        return model[1].running_mean.clone()

    means = fs.simulate(train, nodes=4, **HARDWARE).results
    # The weights stand still, so the statistics are those of the data, whoever's they are.
    first = normed_model()[0]
    with torch.no_grad():
        whole = torch.stack([first(data(rank)[0]).mean(0) for rank in range(4)]).mean(0)
    torch.testing.assert_close(torch.stack(list(means.values())).mean(0), whole, rtol=0, atol=0.1)
    assert float(whole.abs().max()) > 0.3


class Interrupted(RuntimeError):
    pass


RESUMED = {
    "Gossip": fs.Gossip(),
    "Gossip at random": fs.Gossip(codec=fs.codecs.Stochastic(bits=6)),
    "Gossip at random, overlapped": fs.Gossip(codec=fs.codecs.Stochastic(bits=6), overlap=True),
    "Gossip in a lattice": fs.Gossip(codec=fs.codecs.Modular(bits=8)),
    "Gossip in a lattice, overlapped": fs.Gossip(codec=fs.codecs.Modular(bits=8), overlap=True),
    "Gossip in a lattice, in turns": fs.Gossip(codec=fs.codecs.Modular(bits=4), topology=Turning()),
    "mixed in a lattice": mixed(fs.codecs.Modular(bits=6)),
    "Choco": fs.Choco(codec=fs.codecs.Stochastic(bits=4)),
    "SGP": fs.SGP(),
    "NoLoCo": fs.NoLoCo(period=4),
    "NoLoCo at random": fs.NoLoCo(period=4, codec=fs.codecs.Modular(bits=8)),
}


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.cases(test=4)
@pytest.mark.slow
def test_resuming_equals_no_interruption_bit_for_bit(name, tmp_path):
    def loop(folder, stop_at=None):
        def body():
            torch.manual_seed(10 + fs.rank())
            model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            x, y = data(fs.rank())
            with fs.join(model, optimizer, RESUMED[name], resume=folder, save_every=3) as node:
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


# Arguments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fs.Gossip(topology="ring"), "Gossip.topology must be a topology such as Ring(), got 'ring'"),
        (lambda: fs.Gossip(topology=fs.topologies.Ring), "write Ring(...), with parentheses"),
        (lambda: fs.Gossip(codec=8), "Gossip.codec must be a codec such as Cast(), got 8"),
        (lambda: fs.Choco(topology=None), "Choco.topology must be a topology such as Ring(), got None"),
        (lambda: fs.Choco(codec="4 bits"), "Choco.codec must be a codec such as Stochastic(bits=4), got '4 bits'"),
        (lambda: fs.Choco(consensus=0), "Choco.consensus must be positive, got 0"),
        (lambda: fs.Choco(consensus=1.5), "Choco.consensus must be at most 1, got 1.5"),
        (lambda: fs.Choco(consensus="all"), "Choco.consensus must be a number, got 'all'"),
        (lambda: fs.ADPSGD(topology=3), "ADPSGD.topology must be a topology such as Ring(), got 3"),
        (lambda: fs.ADPSGD(codec=8), "ADPSGD.codec must be a codec such as Modular(bits=8), got 8"),
        (lambda: fs.NoLoCo(period=0), "NoLoCo.period must be at least 1, got 0"),
        (lambda: fs.NoLoCo(outer_lr=0), "NoLoCo.outer_lr must be positive, got 0"),
        (lambda: fs.NoLoCo(outer_momentum=-0.1), "NoLoCo.outer_momentum must not be negative, got -0.1"),
        (lambda: fs.NoLoCo(outer_momentum=1), "NoLoCo.outer_momentum must be below 1, got 1"),
        (lambda: fs.NoLoCo(codec=None), "NoLoCo.codec must be a codec such as Modular(bits=8), got None"),
        (lambda: fs.NoLoCo(matching_seed=-1), "NoLoCo.matching_seed must be at least 0, got -1"),
        (lambda: fs.SGP(topology=fs.topologies.Ring()), "unexpected keyword argument 'topology'"),  # type: ignore[call-arg]
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(make, sentence):
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert sentence in str(caught.value)
