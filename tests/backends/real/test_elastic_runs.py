"""Elastic runs on real processes: strategies that take means go on when nodes die, and take in those that come."""

import io
import time

import pytest
from elastic_processes import PATIENCE, Run, alike
from rich.console import Console

import flockstep as fs
from flockstep.backends.real.security.keys import create
from flockstep.live.reader import Reader
from flockstep.live.state import state
from flockstep.live.terminal import view

pytestmark = pytest.mark.slow
MEANS = ["LocalSGD", "CELGC", "DiLoCo", "DataParallel"]
OVERLAPPED = ["StreamingDiLoCo", "HPSGD", "CoCoD"]
ONE_WILL_DO = fs.Elastic(min_nodes=1)


@pytest.fixture
def run(tmp_path):
    runs = []

    def begin(size, strategy="LocalSGD", elastic=ONE_WILL_DO, **given):
        runs.append(Run(tmp_path, size, strategy, elastic, **given))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


@pytest.mark.parametrize("strategy", [*MEANS, *OVERLAPPED])
def test_calm_runs_end_alike(run, strategy):
    ends = run(2, strategy).end(20)
    assert [end["ended"] for end in ends.values()] == [20, 20]
    assert [end["views"] for end in ends.values()] == [[], []]
    assert alike(ends) or strategy in OVERLAPPED


@pytest.mark.parametrize("killed", [0, 2])
def test_the_others_go_on_without_one_that_is_killed(run, killed):
    flock = run(3)
    flock.step(10)
    flock.nodes[killed].kill()
    rest = [rank for rank in range(3) if rank != killed]
    ends = flock.end(20)
    assert alike(ends)
    assert {rank: end["ended"] for rank, end in ends.items()} == dict.fromkeys(rest, 20)
    assert all(end["views"] == [[rest, [], [killed]]] for end in ends.values())


@pytest.mark.cases(test=2)
@pytest.mark.parametrize("strategy", [*MEANS, *OVERLAPPED])
@pytest.mark.parametrize("killed", [0, 1])
def test_one_that_is_started_again_takes_over_the_others_state(run, strategy, killed):
    flock = run(2, strategy)
    flock.step(10)
    flock.nodes[killed].kill()
    flock.step(16, 1 - killed)
    begins = flock.admit(flock.start(killed))
    assert begins > 16
    ends = flock.end(begins + 20)
    assert alike(ends) or strategy in OVERLAPPED
    assert [end["ended"] for end in ends.values()] == [begins + 20] * 2


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("stopped", [0, 1])
def test_one_that_stood_still_comes_in_again_in_the_middle_of_its_own_loop(run, stopped):
    flock = run(3, elastic=fs.Elastic(patience="4 s"))
    flock.step(10)
    flock.nodes[stopped].stop()
    rest = [rank for rank in range(3) if rank != stopped]
    flock.step(18, *rest)
    flock.nodes[stopped].go_on()
    # Its next step brings it to where the others are, which must stand between two of theirs meanwhile.
    flock.nodes[stopped].may(300)
    step = 18
    while flock.nodes[stopped].last["step"] < 18:
        step += 1
        for rank in rest:
            flock.nodes[rank].may(step)
        while not any(flock.nodes[rank].has_spoken for rank in range(3)):
            time.sleep(0.001)
        for node in flock.nodes.values():
            if node.has_spoken:
                node.until("step")
    ends = flock.end(320)
    assert alike(ends)
    assert ends[stopped]["counts"]["times left out"] == 1
    assert all([[0, 1, 2], [stopped], []] in ends[rank]["views"] for rank in rest)


def test_of_three_two_go_on_and_one_waits_until_another_is_back(run):
    flock = run(3, elastic=fs.Elastic(patience="4 s"))
    flock.step(10)
    flock.nodes[1].kill()
    flock.step(13, 0, 2)
    flock.nodes[0].stop()
    # It may not go on alone: a node that stands still may be training where this one cannot see it.
    flock.nodes[2].may(16)
    flock.nodes[2].until("step", 15)
    flock.start(1)
    assert not flock.nodes[2].has_spoken
    flock.nodes[0].go_on()
    assert flock.admit(flock.nodes[1]) >= 14
    assert alike(flock.end(60))


def test_whoever_watches_sees_who_takes_part(run, tmp_path):
    journals = tmp_path / "journals"
    reader = Reader(journals)

    def seen():
        told = state(reader.look(), reader.clock())
        view = told["view"] or {"members": None, "changes": []}
        return view["members"], [change["what"] for change in view["changes"]], told

    flock = run(3, FLOCKSTEP_JOURNAL=str(journals))
    flock.step(10)
    until(lambda: seen()[2]["nodes"][2]["state"] == "here" and seen()[:2] == ([0, 1, 2], []))
    flock.nodes[1].kill()
    flock.step(16, 0, 2)
    until(lambda: seen()[:2] == ([0, 2], ["node 1 left out"]))
    assert seen()[2]["nodes"][1]["state"] == "gone"
    begins = flock.admit(flock.start(1))
    until(lambda: seen()[:2] == ([0, 1, 2], ["node 1 came", "node 1 left out"]))
    ends = flock.end(begins + 20)
    assert ends[0]["views"] == [[[0, 2], [], [1]], [[0, 1, 2], [1], []]]
    for node in flock.nodes.values():
        node.process.join()
    members, changes, told = seen()
    assert (members, changes) == ([0, 1, 2], ["node 1 came", "node 1 left out"])
    waited = [max(ends[rank]["waited"][k] for rank in (0, 2)) for k in (1, 0)]
    assert [change["waited"] for change in told["view"]["changes"]] == pytest.approx(waited, abs=1e-6)
    words = io.StringIO()
    Console(file=words, width=80).print(view(told, str(journals)))
    assert "Took part last: 0-2 (3 of 3 nodes)." in words.getvalue()
    assert "node 1 left out; 2 take part" in words.getvalue()


def until(is_so):
    """A journal is written a few times a second."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_node_of_a_new_number_joins_by_the_address_of_any(run):
    flock = run(2)
    address = flock.nodes[1].until("address")["address"]
    flock.step(10)
    begins = flock.admit(flock.join(2, address))
    ends = flock.end(begins + 20)
    assert alike(ends)
    assert sorted(ends) == [0, 1, 2]
    assert ends[0]["views"] == [[[0, 1, 2], [2], []]]


def test_all_that_were_lost_at_once_go_on_from_their_own_checkpoints(run, tmp_path):
    options = {"resume": tmp_path / "kept", "save_every": 4}
    flock = run(3, elastic=True, options=options)
    flock.step(10)
    for node in flock.nodes.values():
        node.kill()
    flock.admit(*[flock.start(rank) for rank in range(3)])
    assert min(node.begins for node in flock.nodes.values()) >= 8
    ends = flock.end(220)
    assert alike(ends)
    # One began alone and let the others in, and says so.
    assert sum(end["views"][0] == [[rank], [rank], []] for rank, end in ends.items()) == 1


@pytest.mark.parametrize("killed", [0, 2])
def test_everything_goes_over_mutual_tls_as_soon_as_there_are_keys(run, tmp_path, killed):
    create(tmp_path / "keys", 3)
    flock = run(3, FLOCKSTEP_KEYS=str(tmp_path / "keys"))
    flock.step(10)
    flock.nodes[killed].kill()
    flock.step(16, *(rank for rank in range(3) if rank != killed))
    begins = flock.admit(flock.start(killed))
    assert alike(flock.end(begins + 20))


@pytest.mark.thorough
def test_who_comes_when_the_run_is_over_is_told_so(run):
    flock = run(2)
    flock.step(10)
    flock.nodes[1].kill()
    flock.nodes[0].end(12)
    flock.nodes[0].until("ended")
    flock.nodes[0].process.join()
    late = flock.start(1)
    assert "comes too late: node 0 came to the end of the run" in late.until("failed")["failed"]


def test_a_strategy_that_waits_for_nobody_takes_it_as_it_is(run):
    flock = run(2, "Swarm")
    flock.step(10)
    flock.nodes[1].kill()
    assert flock.end(20)[0]["ended"] == 20


@pytest.mark.parametrize("killed", [0, 1])
def test_of_two_one_waits_until_the_other_is_back(run, killed):
    flock = run(2, elastic=True)
    flock.step(10)
    flock.nodes[killed].kill()
    flock.nodes[1 - killed].may(200)
    flock.nodes[1 - killed].until("step", 11)
    begins = flock.start(killed).until("begins")["begins"]
    assert begins >= 12
    assert alike(flock.end(220))


@pytest.mark.parametrize("average", ["Coded", "Compensated"])
@pytest.mark.thorough
def test_averages_in_few_bits_are_cut_anew(run, average):
    flock = run(3, average, elastic=True)
    flock.step(10)
    flock.nodes[1].kill()
    flock.step(20, 0, 2)
    begins = flock.admit(flock.start(1))
    ends = flock.end(begins + 8)
    assert alike(ends)


def test_a_new_number_is_told_that_averages_in_few_bits_are_cut_for_others(run):
    flock = run(2, "Coded", elastic=True)
    address = flock.nodes[1].until("address")["address"]
    flock.step(10)
    late = flock.join(2, address)
    for step in range(11, 200):
        late.waits(0.1)
        if late.has_spoken:
            break
        flock.step(step, 0, 1)
    assert "node 2 is one more than the 2 that the run began with" in late.until("failed")["failed"]
    late.process.join()
    assert alike(flock.end(220))


def test_a_strategy_that_sends_to_neighbours_is_refused(run):
    flock = run(2, "Gossip", elastic=True)
    flock.nodes[0].may(4)
    flock.nodes[1].may(4)
    assert "sends to neighbours" in flock.nodes[0].until("failed")["failed"]
