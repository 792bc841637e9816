from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch

import flockstep as fs
from flockstep.exports.picture import plot
from flockstep.trace import Trace
from flockstep.workloads.convex import Quadratics


@pytest.fixture(scope="module")
def trace():
    network = fs.Network(bandwidth="1 Mbit/s")
    compute = fs.Compute(step="10 ms")
    return fs.simulate(
        fs.LocalSGD(period=4), Quadratics(dim=8), nodes=3, steps=20, record_every=5, network=network, compute=compute
    )


def test_a_frame_has_one_line_per_record(trace):
    pytest.importorskip("pandas", reason="needs pip install 'flockstep[frame]'")
    frame = trace.to_frame()
    assert list(frame.columns) == ["seconds", "step", "loss", "bytes", "spread"]
    assert list(frame["step"]) == [0, 5, 10, 15, 20]
    assert list(frame["loss"]) == [row.loss for row in trace.rows]


def test_json_and_back(trace):
    back = Trace.from_json(trace.to_json())
    assert (back.strategy, back.rows, back.nodes) == (trace.strategy, trace.rows, trace.nodes)


def test_the_model_is_the_average(trace):
    torch.testing.assert_close(trace.model, torch.stack([trace.models[r] for r in range(3)]).mean(0))


def test_time_to_a_loss(trace):
    middle = trace.rows[2]
    assert trace.time_to(middle.loss) == middle.seconds
    assert trace.time_to(-1.0) is None


@pytest.mark.parametrize("against", ["seconds", "step", "bytes"])
def test_a_picture_is_drawn(trace, tmp_path, against):
    path = trace.plot(tmp_path / "new folder" / "loss.png", against)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 5000


def test_a_picture_against_nonsense_is_refused(trace, tmp_path):
    with pytest.raises(ValueError, match=r"plot\.against must be one of 'seconds', 'step', 'bytes', got 'weather'"):
        trace.plot(tmp_path / "loss.png", "weather")


@pytest.mark.slow
def test_several_runs_in_one_picture(trace, tmp_path):
    assert plot([trace, trace], tmp_path / "two.png", labels=["one", "two"], title="twice").exists()


def test_a_trace_says_what_it_was(trace):
    assert str(trace).startswith("LocalSGD(period=4): loss ")
    assert "after 20 steps on 3 node(s)" in str(trace)


def test_a_notebook_shows_a_table(trace):
    told = ElementTree.fromstring(trace._repr_html_())
    assert told.find("caption").text == "LocalSGD(period=4)"
    shown = dict(zip([cell.text for cell in told.iter("th")], [cell.text for cell in told.iter("td")], strict=True))
    assert shown["loss"] == f"{trace.loss:.4g}"
    assert (shown["steps"], shown["nodes"]) == ("20", "3")
    assert shown["spread"] == f"{trace.spread:.3g}"


def test_a_notebook_is_told_that_nothing_was_logged_and_runs_nothing_of_a_name(silent):
    told = replace(silent, strategy="Mine('<script>')")._repr_html_()
    assert "<caption>Mine(&#x27;&lt;script&gt;&#x27;)</caption>" in told
    assert "<td>none logged</td><td>4</td>" in told


@pytest.fixture(scope="module")
def silent():
    """A loop of one's own that logs nothing, on two nodes that end after different numbers of steps."""

    def train():
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fs.join(model, optimizer, fs.LocalSGD(period=10)):
            for _ in range(3 + fs.rank()):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()

    return fs.simulate(train, nodes=2, timeline=True)


def test_a_run_that_logged_nothing_says_so(silent):
    assert silent.rows == []
    assert "no loss logged in 4 steps on 2 node(s)" in str(silent)
    assert "rows=[]" in repr(silent)
    with pytest.raises(ValueError, match=r"this run recorded no loss\n  in a loop of your own, call node\.log"):
        _ = silent.loss
    assert silent.time_to(0.0) is None


@pytest.mark.slow
def test_a_run_that_logged_nothing_is_written_all_the_same(silent, tmp_path):
    pytest.importorskip("pandas", reason="needs pip install 'flockstep[frame]'")
    assert list(silent.to_frame().columns) == ["seconds", "step", "loss", "bytes", "spread"]
    assert len(silent.to_frame()) == 0
    assert str(Trace.from_json(silent.to_json())) == str(silent)
    assert silent.to_csv(tmp_path / "rows.csv").read_text().splitlines() == ["seconds,step,loss,bytes,spread"]
    assert silent.to_perfetto(tmp_path / "trace.json").stat().st_size > 0
    assert silent.plot(tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_trace_without_models_says_so(trace):
    with pytest.raises(ValueError, match="this trace holds no models"):
        _ = Trace.from_json(trace.to_json()).model


def test_a_trace_of_nobody_is_still_a_trace():
    nobody = Trace("LocalSGD(period=2)", [], [], {})
    assert str(nobody).startswith("LocalSGD(period=2): no loss logged in 0 steps on 0 node(s), 0 s")
