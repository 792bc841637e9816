import math

import pytest
from comparisons import made

import flockstep as fs
from flockstep.compare.folder import finished, run_file
from flockstep.compare.runs import NO_LOSSES, perform
from flockstep.trace import Row


def ran(tmp_path, comparison, index=0, seed=0, start=fs.simulate):
    seen = []
    perform(comparison, index, seed, run_file(tmp_path, index, seed), seen.append, start)
    return finished(tmp_path, comparison.record(), index, seed), seen


def test_a_run_is_what_simulate_gives_with_the_same_arguments(tmp_path):
    comparison = made(strategies=["LocalSGD(period=2)"], straggler=["1:3x"], lr=0.2)
    outcome, seen = ran(tmp_path, comparison, seed=1)
    expected = fs.simulate(
        fs.LocalSGD(period=2),
        comparison.thing(),
        nodes=4,
        steps=10,
        optimizer=comparison.entries[0].optimizer.factory(0.2),
        network=fs.Network(bandwidth="100 Mbit/s", latency="20 ms"),
        compute=fs.Compute(step="50 ms", stragglers={1: 3.0}),
        record_every=1,
        seed=1,
    )
    assert outcome.trace.rows == expected.rows == seen
    assert outcome.trace.nodes == expected.nodes
    assert outcome.failure is None


def test_the_first_seed_alone_has_a_timeline(tmp_path):
    comparison = made(strategies=["DataParallel"])
    first, second = (ran(tmp_path, comparison, seed=seed)[0] for seed in (0, 1))
    assert first.trace.timeline.spans
    assert second.trace.timeline is None


def test_one_sided_strategies_share_the_work_as_they_can(tmp_path):
    outcome, _ = ran(tmp_path, made(strategies=["Swarm(period=2)"], straggler=["1:4x"], steps=40))
    steps = [node.steps for node in outcome.trace.nodes]
    assert steps[1] < min(steps[0], steps[2], steps[3])
    # Nodes hear of what others spent a little late, and so may go a little over.
    assert 160 <= sum(steps) <= 180


@pytest.mark.parametrize(
    ("given", "kind"),
    [({"strategies": ["DataParallel"], "lr": 1e30}, "Diverged"), ({"crash": ["1@0.2s"]}, "LostPeer")],
)
def test_a_failure_is_an_outcome(tmp_path, given, kind):
    outcome, _ = ran(tmp_path, made(steps=50, **given))
    assert outcome.failure.startswith(kind)
    assert len(outcome.trace.nodes) == 4
    assert all(math.isfinite(row.loss) for row in outcome.trace.rows)


def test_a_real_failure_keeps_what_was_heard_of_it(tmp_path):
    row = Row(2.0, 7, 0.5, 10.0, 0.0)

    def start(*, on_row, **rest):
        on_row(row)
        raise fs.LostPeer("node 1 was killed", rank=1)

    outcome, seen = ran(tmp_path, made(strategies=["DataParallel"]), seed=1, start=start)
    assert seen == outcome.trace.rows == [row]
    assert outcome.failure == "LostPeer: node 1 was killed"
    assert [(node.rank, node.seconds) for node in outcome.trace.nodes] == [(rank, 2.0) for rank in range(4)]


def test_a_mistake_is_not_an_outcome(tmp_path):
    def start(**rest):
        raise fs.NodeFailed("node 0: NameError")

    with pytest.raises(fs.NodeFailed):
        ran(tmp_path, made(strategies=["DataParallel"]), start=start)
    assert finished(tmp_path, made(strategies=["DataParallel"]).record(), 0, 0) is None


def test_a_loop_that_logs_nothing_is_told_how_to(tmp_path):
    def start(**rest):
        return fs.simulate(fs.DataParallel(), made().thing(), nodes=2, steps=1, record_every=1)

    def silent(**rest):
        trace = start()
        trace.rows.clear()
        return trace

    outcome, _ = ran(tmp_path, made(strategies=["DataParallel"]), start=silent)
    assert outcome.failure == NO_LOSSES
