"""Real nodes tell onlookers as they go, where a journal is asked for."""

from dataclasses import dataclass, field

import pytest
import torch

import flockstep as fs
from flockstep.live import journal
from flockstep.timeline import Timeline
from flockstep.workloads.convex import Quadratics

STRATEGIES = [fs.LocalSGD(period=3), fs.HPSGD(period=3), fs.Swarm(period=2)]


@dataclass
class Notes(Timeline):
    """What a journal was told, kept."""

    who: dict = field(default_factory=dict)
    rows: list = field(default_factory=list)
    living: list = field(default_factory=list)
    tally: object = None
    closed: list = field(default_factory=list)

    def row(self, row):
        self.rows.append(row)

    def peers(self, living):
        self.living.append(living)

    def follow(self, tally):
        self.tally = tally

    def close(self, failure=None):
        self.closed.append(failure)


@pytest.fixture
def notes(monkeypatch):
    opened = {}

    def open_notes(folder, *, rank, size, strategy):
        opened[rank] = Notes(who={"folder": folder, "size": size, "strategy": strategy})
        return opened[rank]

    monkeypatch.setattr(journal, "open_journal", open_notes)
    monkeypatch.setenv("FLOCKSTEP_JOURNAL", "somewhere")
    return opened


def own_loop(strategy, fails=False):
    def train():
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with fs.join(model, optimizer, strategy) as node:
            for k in range(13):
                optimizer.zero_grad()
                loss = model(torch.ones(1, 3)).square().mean()
                loss.backward()
                optimizer.step()
                node.log(loss.item())
                if fails and k == 5:
                    raise RuntimeError("out of luck")

    return train


@pytest.mark.parametrize("timeline", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_journal_is_told_all_that_a_timeline_is(notes, strategy, timeline):
    trace = fs.launch(strategy, Quadratics(dim=6), nodes=3, steps=13, on="threads", timeline=timeline)
    assert sorted(notes) == [0, 1, 2]
    for report in trace.nodes:
        note = notes[report.rank]
        assert note.who == {"folder": "somewhere", "size": 3, "strategy": trace.strategy}
        assert note.tally.steps == report.steps == 13
        assert note.closed == [None]
        assert sum(note.sent.values()) == report.bytes_sent
        for kind, seconds in note.seconds(report.rank).items():
            assert seconds == pytest.approx(getattr(report, kind), rel=1e-9, abs=1e-9)
        assert set(note.living[0]) == {0, 1, 2} - {report.rank}
    assert sorted((row for note in notes.values() for row in note.rows), key=lambda row: row.seconds) == trace.rows
    assert (trace.timeline is not None) == timeline
    if timeline:
        assert trace.timeline.beside is None
        assert trace.timeline.sent == {pair: n for note in notes.values() for pair, n in note.sent.items()}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_so_is_that_of_a_loop(notes, strategy):
    trace = fs.launch(own_loop(strategy), nodes=2, on="threads")
    for report in trace.nodes:
        note = notes[report.rank]
        assert note.who["strategy"].startswith(type(strategy).__name__)
        assert len(note.rows) == 13
        assert sum(note.sent.values()) == report.bytes_sent
        assert note.seconds(report.rank)["computing"] == pytest.approx(report.computing, rel=1e-9)
        assert note.closed == [None]
    assert notes[0].rows == trace.rows


def test_a_loop_alone_is_told_of_too(notes):
    own_loop(STRATEGIES[0])()
    assert (len(notes[0].rows), notes[0].closed) == (13, [None])


def test_onlookers_learn_why_a_node_ended(notes):
    with pytest.raises(fs.NodeFailed, match="out of luck"):
        fs.launch(own_loop(STRATEGIES[0], fails=True), nodes=2, on="threads")
    assert all(len(note.closed) == 1 for note in notes.values())
    assert any("out of luck" in str(note.closed[0]) for note in notes.values())


def test_nobody_is_told_unless_asked(notes, monkeypatch):
    monkeypatch.delenv("FLOCKSTEP_JOURNAL")
    fs.launch(STRATEGIES[0], Quadratics(dim=6), nodes=2, steps=4, on="threads")
    own_loop(STRATEGIES[0])()
    assert notes == {}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_processes_write_journals(tmp_path, monkeypatch, strategy):
    """The variable is read where nodes are launched: a child's environment is older."""
    monkeypatch.setenv("FLOCKSTEP_JOURNAL", str(tmp_path))
    trace = fs.launch(strategy, Quadratics(dim=6), nodes=2, steps=13, timeline=True)
    assert len(trace.timeline.spans) > 0
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    for file in files:
        first, *_, last = file.read_text().splitlines()
        assert '"who"' in first
        assert '"left"' in last
