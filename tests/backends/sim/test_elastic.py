"""Virtual runs whose nodes come and go: who takes part in what, what a newcomer takes over, and when nodes wait."""

import functools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import flockstep as fs
from flockstep.message import Message
from flockstep.testing import LawBroken, check_elastic
from flockstep.workloads.convex import Quadratics

SGD = functools.partial(torch.optim.SGD, lr=1.0)
STEP = 1.0


@dataclass(frozen=True)
class Own:
    """Every gradient of node r is -(r + 1): what a model has moved tells who took how many steps."""

    rank: int = 0

    def start(self):
        return torch.zeros(3, dtype=torch.float64)

    def gradient(self, x, rng):
        return torch.full_like(x, -(self.rank + 1.0))

    def loss(self, x):
        return 1.0

    def shard(self, rank, size):
        return replace(self, rank=rank)


def run(strategy=fs.LocalSGD(period=2), nodes=3, steps=8, faults=(), elastic=True, workload=Own(), **hardware):
    hardware.setdefault("compute", fs.Compute(step=STEP))
    return fs.simulate(
        strategy,
        workload,
        nodes=nodes,
        steps=steps,
        optimizer=SGD,
        faults=faults,
        elastic=elastic,
        start_skew=0,
        record_every=1,
        **hardware,
    )


PLAIN_IN_FEW_BITS = [
    fs.LocalSGD(period=3, average=fs.averages.Coded(codec=fs.codecs.Stochastic(bits=8))),
    fs.DataParallel(average=fs.averages.Compensated(codec=fs.codecs.TopK(fraction=0.4))),
]


@pytest.mark.slow
def test_without_faults_it_is_the_run_that_is_not_elastic():
    for nodes in (1, 2, 5):
        for strategy in (fs.LocalSGD(period=3), fs.HPSGD(), fs.DataParallel(), *PLAIN_IN_FEW_BITS):
            plain = run(strategy, nodes, elastic=False, workload=Quadratics(dim=5, dtype=torch.float64))
            elastic = run(strategy, nodes, workload=Quadratics(dim=5, dtype=torch.float64))
            for rank, model in plain.models.items():
                np.testing.assert_allclose(elastic.models[rank], model, rtol=0, atol=1e-12)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_a_mean_goes_directly(nodes):
    network = fs.Network(bandwidth="800 bit/s", latency="10 ms")
    trace = run(fs.LocalSGD(period=1), nodes, 1, network=network)
    # Chunks and sums at 100 B/s, a vector of 24 bytes; two latencies, and four of words.
    nbytes = round(2 * (nodes - 1) / nodes * 24)
    assert trace.nodes[0].bytes_sent == trace.nodes[0].bytes_received == nbytes
    assert trace.seconds == pytest.approx(STEP + nbytes / 100 + 6 * 0.01 * (nodes > 1))


def by_hand(lives, steps, period):
    """Local SGD of ``Own`` in NumPy: ``lives[k]`` are the nodes that take step k; a round is of those at its end."""
    size = 1 + max(max(there) for there in lives)
    x = np.zeros(size)
    for k in range(steps):
        for rank in lives[k]:
            x[rank] += rank + 1
        if (k + 1) % period == 0 or k + 1 == steps:
            there = list(lives[k])
            # Who is not there takes the mean over when it comes.
            x[:] = x[there].mean()
    return x[0]


@pytest.mark.parametrize("period", [1, 2, 3])
def test_the_mean_is_of_those_who_are_there(period):
    # Node 1 dies within step 5 (of 0, 1, ...): its steps of that round are lost with it.
    steps, dies = 8, 5
    trace = run(fs.LocalSGD(period=period), 3, steps, [fs.faults.Crash(node=1, at=dies * STEP + 0.5)])
    first = dies - dies % period
    lives = [(0, 1, 2)] * first + [(0, 2)] * (steps - first)
    assert set(trace.models) == {0, 2}
    for model in trace.models.values():
        np.testing.assert_allclose(model, by_hand(lives, steps, period), rtol=1e-14)


def test_who_comes_back_takes_over_and_is_one_more_node():
    # Back while the others take step 4 (from 4 s on): it has their state as of step 5, and takes steps 5, 6 and 7.
    trace = run(fs.LocalSGD(period=4), 2, 8, [fs.faults.Crash(node=1, at=1.5, back_after=3)], fs.Elastic(min_nodes=1))
    a_round = 4.0  # of node 0 alone
    x0, x1 = a_round + 4, a_round + 1 + 2 * 3
    assert trace.nodes[1].counts == {"restarts": 1}
    assert trace.nodes[1].steps == 8
    for model in trace.models.values():
        np.testing.assert_allclose(model, (x0 + x1) / 2)


def test_what_an_optimizer_keeps_comes_along():
    adam = functools.partial(torch.optim.Adam, lr=0.1)
    quadratics = Quadratics(dim=5, noise=0.0, heterogeneity=0.0, dtype=torch.float64)
    crash = fs.faults.Crash(node=1, at=2.5, back_after=1)
    hardware = {"nodes": 2, "steps": 12, "optimizer": adam, "compute": fs.Compute(step=STEP), "start_skew": 0}
    alone = fs.simulate(fs.LocalSGD(period=4), quadratics, **hardware)
    back = fs.simulate(fs.LocalSGD(period=4), quadratics, faults=[crash], elastic=fs.Elastic(min_nodes=1), **hardware)
    # Without noise all nodes are alike: who takes over all of another's state changes nothing.
    for model in back.models.values():
        np.testing.assert_allclose(model, alone.models[0], rtol=1e-12)


def test_two_who_come_at_once_share_nothing():
    adam = functools.partial(torch.optim.Adam, lr=0.1)
    crashes = [fs.faults.Crash(node=rank, at=2.5, back_after=1) for rank in (1, 3)]
    quadratics = Quadratics(dim=5, noise=0.1, dtype=torch.float64)
    hardware = {"nodes": 5, "steps": 12, "optimizer": adam, "compute": fs.Compute(step=STEP), "start_skew": 0}
    trace = fs.simulate(fs.DataParallel(), quadratics, faults=crashes, elastic=True, **hardware)
    assert [node.counts.get("restarts", 0) for node in trace.nodes] == [0, 1, 0, 1, 0]
    assert all(torch.equal(model, trace.models[0]) for model in trace.models.values())


def test_too_few_wait_until_enough_are_back():
    crashes = [fs.faults.Crash(node=rank, at=2.5, back_after=10 + rank) for rank in (1, 2)]
    trace = run(fs.LocalSGD(period=2), 3, 6, crashes)
    # More than half of three: with node 1, who knocks at 12.5 s, there are two again.
    assert trace.seconds > 12.5
    assert [node.counts.get("restarts", 0) for node in trace.nodes] == [0, 1, 1]
    assert all(torch.equal(model, trace.models[0]) for model in trace.models.values())


def test_too_few_for_good_are_told():
    crashes = [fs.faults.Crash(node=rank, at=2.5) for rank in (1, 2)]
    with pytest.raises(fs.Deadlock, match=r"nodes 1, 2 lost, 1 of 3 left, and at least 2 must be there"):
        run(fs.LocalSGD(period=2), 3, 6, crashes)
    trace = run(fs.LocalSGD(period=2), 3, 6, crashes, fs.Elastic(min_nodes=1))
    np.testing.assert_allclose(trace.models[0], 2 * 2.0 + 4 * 1.0)


def test_all_down_at_once_begin_anew_together():
    crashes = [fs.faults.Crash(node=rank, at=2.5, back_after=1 + rank) for rank in range(3)]
    trace = run(faults=crashes)
    # Two of three are enough to begin, a second before the last is back.
    assert 4.5 + 8 <= trace.seconds < 4.5 + 8 + 2
    assert [node.steps for node in trace.nodes] == [8, 8, 8]
    assert all(torch.equal(model, trace.models[0]) for model in trace.models.values())


def test_who_comes_when_all_is_over_has_what_they_have():
    trace = run(steps=4, faults=[fs.faults.Crash(node=2, at=2.5, back_after=100)])
    assert torch.equal(trace.models[2], trace.models[0])
    assert trace.nodes[2].steps == 4


def test_a_node_that_stands_still_is_left_out_and_comes_again():
    short, long = (fs.faults.Pause(node=1, start=2.5, duration=seconds) for seconds in (0.9, 5))
    patient = run(faults=[short])
    assert "left out" not in patient.nodes[1].counts
    trace = run(steps=16, faults=[long])
    assert trace.nodes[1].counts["left out"] == 1
    assert all(torch.equal(model, trace.models[0]) for model in trace.models.values())
    # The others waited for it no longer than their patience.
    assert trace.nodes[0].waiting < 1 + 2 * STEP


@pytest.mark.parametrize("alone", [0, 4])
def test_of_two_parts_the_larger_goes_on(alone):
    cut = fs.faults.Partition(groups=[(alone,)], start=2.5, duration=30)
    calm, trace = run(nodes=5, steps=10), run(nodes=5, steps=10, faults=[cut])
    assert trace.nodes[alone].counts["left out"] == 1
    assert all(torch.equal(model, trace.models[2]) for model in trace.models.values())
    others = [rank for rank in range(5) if rank != alone]
    # They do not wait for the end of it.
    assert all(trace.nodes[rank].waiting < calm.nodes[rank].waiting + 2 for rank in others)


def test_who_stands_still_alone_is_left_out_by_nobody():
    faults = [fs.faults.Crash(node=1, at=1.5, back_after=9), fs.faults.Pause(node=0, start=2.5, duration=4)]
    trace = run(nodes=2, faults=faults)
    assert "left out" not in trace.nodes[0].counts
    assert torch.equal(trace.models[0], trace.models[1])


def test_several_find_that_all_is_over():
    faults = [fs.faults.Crash(node=rank, at=2.5 + rank, back_after=20) for rank in (1, 2)]
    trace = run(nodes=5, steps=6, faults=faults)
    assert all(torch.equal(model, trace.models[0]) for model in trace.models.values())


def test_halves_wait():
    cut = fs.faults.Partition(groups=[(0, 1)], start=2.5, duration=30)
    trace, calm = run(nodes=4, faults=[cut]), run(nodes=4)
    assert all("left out" not in node.counts for node in trace.nodes)
    assert trace.seconds > 32
    assert all(torch.equal(trace.models[rank], calm.models[rank]) for rank in range(4))


def test_a_donor_that_dies_in_the_middle_is_replaced():
    # A model of 24 bytes takes a while to node 2; its donor, who comes to a boundary first, dies in between.
    network = fs.Network(bandwidth="100 B/s")
    faults = [fs.faults.Crash(node=2, at=1.5, back_after=2), fs.faults.Crash(node=0, at=4.2)]
    trace = run(nodes=4, steps=12, faults=faults, elastic=fs.Elastic(min_nodes=1), network=network)
    assert set(trace.models) == {1, 2, 3}
    assert all(torch.equal(model, trace.models[1]) for model in trace.models.values())


def exchanging(logs, *, behind):
    """A strategy whose nodes tell each other who tells whom, once a step: at once, or behind the next step."""

    class Tells:
        async def run(self, node):
            async def tell():
                notes = [Message.of_bytes(bytes([node.rank, to])) for to in range(node.size)]
                received = await node.exchange(notes)
                log.append(([message.to_bytes() for message in received], node.view))

            log = logs[node.rank, node.incarnation] = []
            pending = node.spawn(tell())
            async for _ in node.steps():
                await node.step(await node.gradient(node.params))
                if not behind:
                    await pending
                    pending = node.spawn(tell())
            await pending

    return Tells()


def notes_to(rank, ranks, size=3):
    return [bytes([by, rank]) if by in ranks else b"" for by in range(size)]


def test_an_exchange_is_among_those_who_are_there():
    logs = {}
    run(exchanging(logs, behind=False), faults=[fs.faults.Crash(node=1, at=2.5)])
    for rank in (0, 2):
        there = [(0, 1, 2)] * 3 + [(0, 2)] * 6
        assert logs[rank, 0] == [(notes_to(rank, ranks), ranks) for ranks in there]


def test_who_comes_hears_what_was_given_to_one_who_took_part():
    # The one exchange takes 5 s among two; node 2 is back at 1.7 s.
    logs = {}
    crash = fs.faults.Crash(node=2, at=0.5, back_after=1.2)
    run(exchanging(logs, behind=True), faults=[crash], network=fs.Network(bandwidth="1 Gbit/s", latency="1 s"))
    assert logs[0, 0] == [(notes_to(0, (0, 1)), (0, 1))]
    assert logs[1, 0] == [(notes_to(1, (0, 1)), (0, 1))]
    assert [received for received, _ in logs[2, 1]] == [notes_to(0, (0, 1))]


@pytest.mark.parametrize("average", [fs.averages.Exact(), fs.averages.Coded(codec=fs.codecs.Raw())], ids=str)
def test_who_came_while_a_round_was_under_way_takes_it_over_if_all_others_die(average):
    # Back at 1.7 s, node 2 hears of the first round; the others, whose round it is, die before it ends.
    crashes = [fs.faults.Crash(node=2, at=0.5, back_after=1.2), *(fs.faults.Crash(node=n, at=3.2) for n in (0, 1))]
    trace = run(
        fs.CoCoD(period=4, average=average),
        faults=crashes,
        elastic=fs.Elastic(min_nodes=1),
        network=fs.Network(bandwidth="1 Gbit/s", latency="500 ms"),
    )
    assert set(trace.models) == {2}
    assert trace.nodes[2].steps == 8


def test_who_comes_hears_of_rounds_under_way_in_few_bits():
    # What node 1 would have brought in its first life is not its own in its second.
    average = fs.averages.Coded(codec=fs.codecs.Raw())
    traces = [
        run(
            fs.HPSGD(period=4, average=each),
            nodes=3,
            steps=16,
            faults=[fs.faults.Crash(node=1, at=5.5, back_after=2)],
            network=fs.Network(bandwidth="1 Gbit/s", latency="200 ms"),
        )
        for each in (fs.averages.Exact(), average)
    ]
    for exact, coded in zip(traces[0].models.values(), traces[1].models.values(), strict=True):
        np.testing.assert_allclose(coded, exact, rtol=1e-12)


RING = fs.topologies.Ring()


@pytest.mark.parametrize(
    "strategy",
    [
        fs.Gossip(),
        fs.SGP(),
        fs.Choco(codec=fs.codecs.Stochastic(bits=4)),
        fs.NoLoCo(period=2),
        fs.SwarmPairs(period=2),
        fs.SClipEFNetwork(),
        fs.GTNSGDm(topology=RING),
        fs.DataParallel(average=fs.averages.Mixed(topology=RING, codec=fs.codecs.Raw())),
    ],
    ids=str,
)
def test_strategies_that_need_a_neighbour_are_refused_in_words(strategy):
    with pytest.raises(fs.FlockstepError, match=r"sends to neighbours.*\n.*LocalSGD.*Coded.*Swarm"):
        run(strategy)


def test_one_sided_strategies_are_as_they_were():
    crash = [fs.faults.Crash(node=1, at=2.5, back_after=2)]
    for elastic in (False, True):
        assert run(fs.Swarm(), faults=crash, elastic=elastic).nodes[1].counts["restarts"] == 1


def test_a_function_of_ones_own_survives_a_death():
    def train():
        model = torch.nn.Linear(2, 1)
        with torch.no_grad():
            model.weight.fill_(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with fs.join(model, optimizer, fs.LocalSGD(period=2)):
            for _ in range(6):
                optimizer.zero_grad()
                (model.weight.sum() * (fs.rank() + 1)).backward()
                optimizer.step()
        return model.weight.detach().clone()

    crash = fs.faults.Crash(node=2, at=2.5)
    trace = fs.simulate(train, nodes=3, compute=fs.Compute(step=STEP), start_skew=0, faults=[crash], elastic=True)
    assert set(trace.results) == {0, 1}
    # Two steps of three nodes, four of two.
    for weight in trace.results.values():
        np.testing.assert_allclose(weight, -(2 * 2 + 4 * 1.5), rtol=1e-6)


def test_arguments():
    for wrong, error in (
        ({"min_nodes": 0}, ValueError),
        ({"patience": 0}, ValueError),
        ({"patience": "x"}, ValueError),
    ):
        with pytest.raises(error, match="Elastic"):
            fs.Elastic(**wrong)
    with pytest.raises(TypeError, match=r"simulate\.elastic must be True, False or an Elastic"):
        run(elastic="yes")
    with pytest.raises(ValueError, match="cannot be 'stacked'"):
        run(engine="stacked")


def test_it_needs_more_than_half_unless_told_otherwise():
    assert [fs.Elastic().least(size) for size in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]
    assert fs.Elastic(min_nodes=1).least(5) == 1


STRATEGIES = [
    fs.LocalSGD(period=4),
    fs.LocalSGD(period=5),
    fs.CELGC(period=4),
    fs.CELGCUpdate(period=4, gamma=1.0),
    fs.DataParallel(),
    fs.DataParallel(average=fs.averages.PowerSGD(rank=1)),
    fs.Episode(period=4),
    fs.EpisodePlus(period=4),
    fs.CoCoD(period=4),
    fs.OverlapLocalSGD(period=4),
    fs.HPSGD(),
    fs.HPSGD(period=3),
    fs.DiLoCo(period=4),
    fs.EagerDiLoCo(period=4),
    fs.StreamingDiLoCo(period=8, delay=2, fragments=2),
    fs.SClipEF(),
]
EIGHT = fs.averages.Coded(codec=fs.codecs.Stochastic(bits=8))
HALF = fs.averages.Coded(codec=fs.codecs.Cast(dtype="bf16"))
# With 4 bits runs as short as these end 2% apart from seed to seed, whoever dies.
COMPENSATED = fs.averages.Compensated(codec=fs.codecs.Stochastic(bits=8))
IN_FEW_BITS = [
    fs.LocalSGD(period=4, average=HALF),
    fs.LocalSGD(period=5, average=EIGHT),
    fs.CELGC(period=4, average=EIGHT),
    fs.CoCoD(period=4, average=HALF),
    fs.HPSGD(average=EIGHT),
    fs.HPSGD(period=3, average=COMPENSATED),
    fs.DiLoCo(period=4, average=EIGHT),
    fs.DiLoCo(period=4, average=COMPENSATED),
    fs.StreamingDiLoCo(period=8, delay=2, fragments=2, average=EIGHT),
    fs.StreamingDiLoCo(period=8, delay=2, fragments=1, average=COMPENSATED),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.cases(check=1, test=4)
def test_every_strategy_that_takes_means_keeps_the_law(strategy):
    check_elastic(strategy, nodes=(3,))


@pytest.mark.cases(test=2)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.thorough
def test_with_two_and_with_five_nodes_too(strategy):
    check_elastic(strategy, nodes=(2, 5))


@pytest.mark.cases(test=2)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", IN_FEW_BITS, ids=str)
def test_averages_in_few_bits_keep_the_law(strategy):
    check_elastic(strategy, nodes=(3,))


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("nodes", [2, 5])
@pytest.mark.parametrize("strategy", IN_FEW_BITS[1::2], ids=str)
@pytest.mark.thorough
def test_averages_in_few_bits_keep_the_law_with_two_and_with_five_nodes_too(strategy, nodes):
    check_elastic(strategy, nodes=(nodes,))


def test_a_strategy_that_leaves_nodes_apart_breaks_the_law():
    @dataclass(frozen=True, kw_only=True)
    class Forgets:
        """Keeps its outer model where no checkpoint finds it."""

        async def run(self, node):
            x, anchor = node.params, node.params.clone()
            async for round in node.rounds(4):
                async for _ in round:
                    await node.step(await node.gradient(x))
                anchor += 0.5 * await node.mean(x - anchor)
                x.copy_(anchor)

    with pytest.raises(LawBroken, match="apart"):
        check_elastic(Forgets(), nodes=(3,))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 6).flatmap(
        lambda size: st.tuples(
            st.just(size),
            st.sampled_from([*STRATEGIES, *IN_FEW_BITS]),
            st.lists(
                st.tuples(st.integers(0, size - 1), st.floats(0, 1.0), st.one_of(st.none(), st.floats(0.01, 0.6))),
                min_size=1,
                max_size=5,
            ),
            st.integers(0, 1000),
        )
    )
)
# One that had ended and died is back, with nothing to give.
@example((2, fs.LocalSGD(period=4), [(0, 1.0, 0.5), (1, 0.5, 0.5)], 0))
@pytest.mark.thorough
def test_whoever_dies_whenever_those_who_end_agree(case):
    size, strategy, deaths, seed = case
    faults = [fs.faults.Crash(node=node, at=at, back_after=back) for node, at, back in deaths]
    trace_of = functools.partial(
        fs.simulate,
        strategy,
        Quadratics(dim=10, noise=0.1, dtype=torch.float64),
        nodes=size,
        steps=16,
        optimizer=functools.partial(torch.optim.AdamW, lr=0.05),
        network=fs.Network(bandwidth="100 kbit/s", latency="4 ms"),
        compute=fs.Compute(step="50 ms", spread=0.2),
        seed=seed,
        faults=faults,
        elastic=fs.Elastic(min_nodes=1, patience=0.1),
    )
    for_good = {fault.node for fault in faults if fault.back_after is None}
    try:
        trace = trace_of()
    except fs.Deadlock as error:
        # Whoever had the run's state is gone for good; those who came back have nothing to begin with.
        assert for_good and ("none is left" in str(error) or "must be there" in str(error))
        return
    models = list(trace.models.values())
    assert all(torch.equal(model, models[0]) for model in models)
    assert all(trace.nodes[rank].steps == 16 for rank in trace.models)
