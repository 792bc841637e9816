"""Scalars of a joined loop, read back with TensorBoard's own reader."""

import sys

import pytest
import torch
from torch import nn

import flockstep as fs
from flockstep.exports.tensorboard import TensorBoard

pytest.importorskip("tensorboard", reason="needs pip install 'flockstep[tensorboard]'")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
HARDWARE = {
    "network": fs.Network(bandwidth="1 Mbit/s", latency="2 ms"),
    "compute": fs.Compute(step="10 ms", spread=0.3),
}
BY_STEPS = {"bytes/sent", "bytes/received", "seconds/computing", "seconds/waiting", "seconds/talking"}


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: read.Scalars(tag) for tag in read.Tags()["scalars"]}


def loop(tensorboard, steps=25, log=(0, 12, 24), **joining):
    def train():
        torch.manual_seed(fs.rank())
        model = nn.Linear(3, 1)
        optimizer, rows, reports = torch.optim.SGD(model.parameters(), lr=0.05), [], {}
        with fs.join(model, optimizer, fs.LocalSGD(period=4), tensorboard=tensorboard, **joining) as node:
            while node.step_count < steps:
                optimizer.zero_grad()
                loss = model(torch.randn(4, 3)).square().mean()
                loss.backward()
                optimizer.step()
                reports[node.step_count] = node.report()
                if node.step_count - 1 in log:
                    node.average_model()
                    node.log(loss.item())
            rows = list(node.rows)
        return rows, reports

    return train


def single(value):
    """As TensorBoard keeps it, in four bytes."""
    return float(torch.tensor(value, dtype=torch.float32))


def test_a_virtual_loop_reads_back_the_same(tmp_path):
    trace = fs.simulate(loop(tmp_path / "board"), nodes=2, timeline=True, **HARDWARE)
    rows, reports = trace.results[0]
    found = scalars(tmp_path / "board")
    assert set(found) == BY_STEPS | {"loss", "spread", "steps per second"}
    assert [(e.step, e.value) for e in found["loss"]] == [(row.step, single(row.loss)) for row in rows]
    assert [(e.step, e.value) for e in found["spread"]] == [(row.step, single(row.spread)) for row in rows]
    # TensorBoard's clock is the virtual one.
    assert [e.wall_time for e in found["loss"]] == [row.seconds for row in rows]
    for tag in BY_STEPS:
        kind, name = tag.split("/")
        told = [(step, getattr(reports[step], f"bytes_{name}" if kind == "bytes" else name)) for step in (10, 20)]
        assert [(e.step, e.value) for e in found[tag][:2]] == [(step, single(value)) for step, value in told]
        assert [e.step for e in found[tag]] == [10, 20, 25]
    moments = [e.wall_time for e in found["bytes/sent"]]
    paces = [e.value for e in found["steps per second"]]
    assert paces[1:] == pytest.approx([10 / (moments[1] - moments[0]), 5 / (moments[2] - moments[1])], rel=1e-6)
    assert paces[0] > 10 / moments[0]


def test_only_node_0_writes_unless_all_are_to(tmp_path):
    fs.simulate(loop(tmp_path / "one"), nodes=3, **HARDWARE)
    assert [path.name.split(".")[0] for path in (tmp_path / "one").iterdir()] == ["events"]
    board = TensorBoard(folder=tmp_path / "all", every=5, all_nodes=True)
    trace = fs.simulate(loop(board), nodes=3, **HARDWARE)
    for rank, folder in enumerate((tmp_path / "all", tmp_path / "all" / "node-1", tmp_path / "all" / "node-2")):
        # Of the folder itself only: TensorBoard's reader does not go deeper.
        found = scalars(folder)
        assert [e.step for e in found["bytes/sent"]] == [5, 10, 15, 20, 25]
        assert [e.value for e in found["loss"]] == [single(row.loss) for row in trace.results[rank][0]]


def test_a_real_loop_reads_back_the_same(tmp_path):
    trace = fs.launch(loop(tmp_path), nodes=2, on="threads")
    found = scalars(tmp_path)
    assert [(e.step, e.value) for e in found["loss"]] == [(r.step, single(r.loss)) for r in trace.rows]
    last = {tag: events[-1].value for tag, events in found.items()}
    assert last["bytes/sent"] <= trace.nodes[0].bytes_sent
    assert 0 < last["seconds/computing"] <= single(trace.nodes[0].computing)


def test_a_loop_alone(tmp_path):
    rows, _ = loop(tmp_path, steps=3, log=(1,))()
    found = scalars(tmp_path)
    assert [(e.step, e.value) for e in found["loss"]] == [(2, single(rows[0].loss))]
    assert [e.step for e in found["bytes/sent"]] == [3]


def test_after_a_resume_later_steps_of_the_interrupted_run_are_hidden(tmp_path):
    board, saved = tmp_path / "board", tmp_path / "saved"
    loop(board, steps=17, log=(9, 15), resume=saved, save_every=12)()
    rows, _ = loop(board, steps=20, log=(18,), resume=saved)()
    found = scalars(board)
    assert [e.step for e in found["loss"]] == [10, 19]
    assert found["loss"][1].value == single(rows[0].loss)


@pytest.mark.parametrize("given", [3, ["runs"]])
def test_nonsense_is_refused(given):
    with pytest.raises(TypeError, match=r"join\.tensorboard must be a folder or a TensorBoard, got"):
        loop(given)()


def test_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'flockstep\[tensorboard\]'"):
        loop(tmp_path)()
