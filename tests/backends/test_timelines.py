"""A timeline tells what reports tell, in pieces: its seconds and bytes add up to theirs, on every backend."""

from functools import partial
from itertools import pairwise

import pytest
import torch
import warm
from one_of_each import one_of_each
from torch import nn

import flockstep as fs
from flockstep.texts.parse import STRATEGIES as NAMES
from flockstep.timeline import KINDS, Timeline
from flockstep.trace import Trace
from flockstep.workloads.convex import Quadratics

HARDWARE = {
    "network": fs.Network(bandwidth="10 Mbit/s", latency="3 ms"),
    "compute": fs.Compute(step="5 ms", spread=0.4, stragglers={0: 3.0}),
}
STRATEGIES = [
    *one_of_each(period=3),
    fs.DataParallel(average=fs.averages.PowerSGD(rank=1)),
    fs.LocalSGD(period=3, average=fs.averages.Coded(codec=fs.codecs.Cast())),
    fs.LocalSGD(period=3, average=fs.averages.Mixed(topology=fs.topologies.Ring(), codec=fs.codecs.Raw())),
    fs.DPSGD(period=3, max_steps_in_flight=3),
]
CREW = fs.DPSGD(period=3, threads=2)
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
without_warnings = pytest.mark.filterwarnings("ignore:DPSGD's analysis covers")


def test_every_strategy_is_here():
    assert {type(strategy).__name__ for strategy in STRATEGIES} == set(NAMES)


def assert_adds_up(trace):
    timeline, size = trace.timeline, len(trace.nodes)
    for report, row in zip(trace.nodes, timeline.matrix(size), strict=True):
        assert sum(row) == report.bytes_sent, report.rank
        assert row[report.rank] == 0
        for kind, seconds in timeline.seconds(report.rank).items():
            assert seconds == pytest.approx(getattr(report, kind), rel=1e-9, abs=1e-9), (report.rank, kind)
        # Nothing is counted twice.
        assert report.computing + report.waiting + report.talking <= report.seconds + 1e-9
        spans = list(timeline.of(report.rank))
        assert all(span.kind in KINDS and span.begin < span.end for span in spans)
        assert all(one.end <= other.begin for one, other in pairwise(spans)), report.rank
    if timeline.began == 0.0:
        assert all(span.end <= trace.nodes[span.rank].seconds + 1e-9 for span in timeline.spans)
    assert Timeline.from_plain(timeline.to_plain()) == timeline


def own_loop(strategy, steps=13):
    def train():
        torch.manual_seed(fs.rank())
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with fs.join(model, optimizer, strategy) as node:
            for k in range(steps):
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
                if k == 6 and node.rank == 0:
                    node.average_model()

    return train


@pytest.mark.parametrize("nodes", [1, 2, 3])
@every_strategy
@pytest.mark.cases(check=28)
def test_of_virtual_nodes(strategy, nodes):
    trace = fs.simulate(strategy, Quadratics(dim=6), nodes=nodes, steps=13, timeline=True, **HARDWARE)
    assert trace.engine == "events"
    assert_adds_up(trace)
    assert all(report.computing > 0 for report in trace.nodes)
    assert sum(map(sum, trace.timeline.matrix(nodes))) > 0 or nodes == 1


@every_strategy
@pytest.mark.cases(check=7)
def test_of_loops_on_virtual_nodes(strategy):
    if isinstance(strategy, fs.EpisodePlus):
        pytest.skip("not for a loop of one's own")
    assert_adds_up(fs.simulate(own_loop(strategy), nodes=3, timeline=True, **HARDWARE))


@every_strategy
@pytest.mark.cases(check=9)
def test_of_threads(strategy):
    trace = fs.launch(strategy, Quadratics(dim=6), nodes=3, steps=13, on="threads", timeline=True)
    assert_adds_up(trace)
    assert sum(report.bytes_sent for report in trace.nodes) == sum(report.bytes_received for report in trace.nodes)
    assert all(report.computing > 0 for report in trace.nodes)


@every_strategy
@pytest.mark.cases(check=7)
def test_of_loops_on_threads(strategy):
    if isinstance(strategy, fs.EpisodePlus):
        pytest.skip("not for a loop of one's own")
    trace = fs.launch(own_loop(strategy), nodes=3, on="threads", timeline=True)
    assert_adds_up(trace)
    assert all(report.computing > 0 for report in trace.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [fs.LocalSGD(period=3), fs.HPSGD(period=3), fs.Swarm(period=2)], ids=repr)
def test_of_processes(strategy):
    assert_adds_up(fs.launch(strategy, Quadratics(dim=6), nodes=3, steps=13, timeline=True))
    assert_adds_up(fs.launch(own_loop(strategy), nodes=2, timeline=True))


@without_warnings
@pytest.mark.parametrize("nodes", [1, 3])
def test_of_a_virtual_crew(nodes):
    trace = fs.simulate(CREW, Quadratics(dim=6), nodes=nodes, steps=13, timeline=True, **HARDWARE)
    assert_adds_up(trace)
    assert all(report.computing > 0 for report in trace.nodes)


@without_warnings
@pytest.mark.slow
def test_of_a_crew():
    assert_adds_up(fs.launch(CREW, Quadratics(dim=6), nodes=2, steps=13, on="threads", timeline=True))


TORCHRUN = """
import sys
import flockstep as fs
from flockstep.workloads.convex import Quadratics

if __name__ == "__main__":
    trace = fs.launch(fs.LocalSGD(period=3), Quadratics(dim=6), steps=13, timeline=True)
    open(f"{sys.argv[1]}/{fs.rank()}.json", "w").write(trace.to_json())
"""


@pytest.mark.slow
def test_of_nodes_with_the_variables_of_torchrun(tmp_path):
    """Each has the whole timeline in the end, and all the same."""
    script = tmp_path / "train.py"
    script.write_text(TORCHRUN)
    for done in warm.flock(2, [script, tmp_path], timeout=240):
        assert done.returncode == 0, done.stderr
    first, second = (Trace.from_json((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert_adds_up(first)
    assert first.timeline == second.timeline


def test_none_is_kept_unless_asked_for():
    for run in (fs.simulate, partial(fs.simulate, engine="events"), partial(fs.launch, on="threads")):
        assert run(fs.LocalSGD(period=3), Quadratics(dim=3), nodes=2, steps=4).timeline is None


def test_it_changes_nothing_else():
    run = partial(fs.simulate, fs.HPSGD(period=3), Quadratics(dim=6), nodes=3, steps=13, engine="events", **HARDWARE)
    plain, told = run(), run(timeline=True)
    assert (plain.rows, plain.nodes) == (told.rows, told.nodes)


def test_one_seed_one_timeline():
    run = partial(fs.simulate, fs.ADPSGD(), Quadratics(dim=6), nodes=3, steps=13, seed=4, timeline=True, **HARDWARE)
    first, second = run(), run()
    assert first.to_json() == second.to_json()
    assert Trace.from_json(first.to_json()).timeline == first.timeline


def test_only_events_can_tell():
    with pytest.raises(ValueError, match=r"simulate\.engine cannot be 'stacked' here: a timeline is told by nodes"):
        fs.simulate(fs.LocalSGD(period=3), Quadratics(dim=3), nodes=2, steps=4, engine="stacked", timeline=True)


def test_it_goes_on_after_misfortune():
    faults = [
        fs.faults.Crash(node=2, at="20 ms", back_after="15 ms"),
        fs.faults.Pause(node=0, start="10 ms", duration="12 ms"),
        fs.faults.Partition(groups=((0, 1), (2,)), start="30 ms", duration="10 ms"),
        fs.faults.MessageLoss(share=0.3),
    ]
    run = partial(fs.simulate, fs.Swarm(period=2), Quadratics(dim=6), nodes=3, steps=25, timeout="50 ms")
    trace = run(faults=faults, timeline=True, **HARDWARE)
    assert trace.nodes[2].counts["restarts"] == 1
    assert_adds_up(trace)


def test_a_run_that_fails_still_tells():
    with pytest.raises(fs.LostPeer) as failed:
        fs.simulate(
            fs.LocalSGD(period=3),
            Quadratics(dim=6),
            nodes=3,
            steps=25,
            faults=[fs.faults.Crash(node=1, at="40 ms")],
            timeline=True,
            **HARDWARE,
        )
    assert_adds_up(failed.value.trace)


def test_a_straggler_is_waited_for():
    """By hand: node 1 computes for 3 s, node 0 for 1 s and waits 2 s for it, at every step."""
    compute = fs.Compute(step=1.0, stragglers={1: 3.0})
    trace = fs.simulate(
        fs.DataParallel(), Quadratics(dim=6), nodes=2, steps=2, compute=compute, start_skew=0.0, timeline=True
    )
    assert [span[1:] for span in trace.timeline.of(0)] == [
        ("computing", 0.0, 1.0),
        ("waiting", 1.0, 3.0),
        ("computing", 3.0, 4.0),
        ("waiting", 4.0, 6.0),
    ]
    assert [span[1:] for span in trace.timeline.of(1)] == [("computing", 0.0, 6.0)]
    # Half the vector around the ring, twice, to the only other node; at both steps.
    assert trace.timeline.sent == {(0, 1): 2 * 6 * 4, (1, 0): 2 * 6 * 4}


def test_a_background_collective_is_nobodys_time_until_it_is_awaited():
    """HPSGD averages while it computes: on a network that needs less than a round for it, nobody waits."""
    trace = fs.simulate(
        fs.HPSGD(period=4),
        Quadratics(dim=6),
        nodes=2,
        steps=20,
        network=fs.Network(bandwidth="1 Gbit/s", latency="1 ms"),
        compute=fs.Compute(step=1.0),
        start_skew=0.0,
        timeline=True,
    )
    assert_adds_up(trace)
    assert [next(trace.timeline.of(rank))[1:] for rank in range(2)] == [("computing", 0.0, 20.0)] * 2
