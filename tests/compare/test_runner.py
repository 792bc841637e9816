import pytest
from comparisons import made

import flockstep as fs
from flockstep.compare import runner
from flockstep.compare.folder import Results, finished, run_file
from flockstep.compare.runner import Run
from flockstep.compare.runs import perform


class Listening:
    def __init__(self):
        self.heard = []

    def begin(self, run):
        self.heard.append(("begin", run))

    def progress(self, run, step, loss):
        self.heard.append(("progress", run, step))

    def end(self, run, failure):
        self.heard.append(("end", run, failure))

    def warn(self, run, sentence):
        self.heard.append(("warn", run, sentence))

    def of(self, kind):
        return [words for words in self.heard if words[0] == kind]


def test_every_strategys_first_seed_comes_first(tmp_path):
    todo = runner.prepare(made(strategies=["DataParallel", "LocalSGD(period=2)"]), tmp_path, fresh=False)
    assert todo == [Run(0, 0), Run(1, 0), Run(0, 1), Run(1, 1)]


def test_what_is_finished_is_not_to_be_done(tmp_path):
    comparison = made(strategies=["DataParallel"])
    perform(comparison, 0, 1, run_file(tmp_path, 0, 1), print, fs.simulate)
    with pytest.raises(ValueError, match="holds runs of no plan"):
        runner.prepare(comparison, tmp_path, fresh=False)
    comparison.record().write(tmp_path)
    assert runner.prepare(comparison, tmp_path, fresh=False) == [Run(0, 0)]
    more = made(strategies=["DataParallel", "LocalSGD(period=2)"], seeds=3)
    assert Run(0, 1) not in runner.prepare(more, tmp_path, fresh=False)


def test_another_comparison_is_refused_unless_it_begins_anew(tmp_path):
    comparison = made(strategies=["DataParallel"])
    perform(comparison, 0, 0, run_file(tmp_path, 0, 0), print, fs.simulate)
    comparison.record().write(tmp_path)
    (tmp_path / "report.html").write_text("old")
    other = made(strategies=["DataParallel"], steps=11)
    with pytest.raises(ValueError, match=r"holds another comparison, with steps 10 and not 11\n .*--fresh"):
        runner.prepare(other, tmp_path, fresh=False)
    assert finished(tmp_path, comparison.record(), 0, 0) is not None
    assert len(runner.prepare(other, tmp_path, fresh=True)) == 2
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "report.html").exists()


WARNING_WORKLOAD = """
import warnings
from flockstep.workloads.convex import Quadratics

class Warning(Quadratics):
    def start(self):
        warnings.warn("it is late")
        return super().start()
"""


@pytest.mark.slow
def test_runs_side_by_side_are_those_of_one_process(tmp_path, monkeypatch):
    (tmp_path / "my_warning_things.py").write_text(WARNING_WORKLOAD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # Of the three, two fail and all warn: both are part of the answer.
    strategies = ["DataParallel", "Swarm(period=2)", "LocalSGD(period=2)"]
    comparison = made(strategies=strategies, workload="my_warning_things:Warning", crash=["1@0.3s"], steps=30)
    listening = Listening()
    todo = runner.prepare(comparison, tmp_path, fresh=False)
    results = runner.run_all(comparison, tmp_path, todo, listening, workers=2)
    assert results == Results.read(tmp_path)
    assert [words[1] for words in listening.of("begin")] == todo
    ends = {words[1]: words[2] for words in listening.of("end")}
    assert set(ends) == set(todo)
    assert {run.index for run, failure in ends.items() if failure is None} == {1}
    assert all(failure is None or failure.startswith("LostPeer") for failure in ends.values())
    assert {words[1] for words in listening.of("progress")} == set(todo)
    assert {words[1:] for words in listening.of("warn")} == {(run, "it is late") for run in todo}
    for run in todo:
        path = run_file(tmp_path / "again", run.index, run.seed)
        with pytest.warns(UserWarning, match="it is late"):
            perform(comparison, run.index, run.seed, path, print, fs.simulate)
        assert path.read_bytes() == run_file(tmp_path, run.index, run.seed).read_bytes()


@pytest.mark.slow
def test_a_mistake_ends_the_comparison_and_says_whose_it_was(tmp_path, monkeypatch):
    (tmp_path / "my_broken_things.py").write_text("def train(strategy):\n    print('so far')\n    return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    comparison = made(strategies=["DataParallel", "LocalSGD(period=2)"], workload="my_broken_things:train", seeds=1)
    todo = runner.prepare(comparison, tmp_path / "out", fresh=False)
    with pytest.raises(
        fs.NodeFailed, match=r"^NodeFailed: DataParallel with seed 0: node \d: ZeroDivisionError: division"
    ):
        runner.run_all(comparison, tmp_path / "out", todo, Listening(), workers=1)
    assert "so far" in (tmp_path / "out" / runner.LOG).read_text()
    assert runner.prepare(comparison, tmp_path / "out", fresh=False) == todo
