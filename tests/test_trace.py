import pytest
import torch

import flockstep as fs
from flockstep.trace import Trace, plot
from flockstep.workloads.convex import Quadratics


@pytest.fixture(scope="module")
def trace():
    network = fs.Network(bandwidth="1 Mbit/s")
    compute = fs.Compute(step="10 ms")
    return fs.simulate(
        fs.LocalSGD(period=4), Quadratics(dim=8), nodes=3, steps=20, record_every=5, network=network, compute=compute
    )


def test_a_frame_has_one_line_per_record(trace):
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


def test_several_runs_in_one_picture(trace, tmp_path):
    assert plot([trace, trace], tmp_path / "two.png", labels=["one", "two"], title="twice").exists()


def test_a_trace_says_what_it_was(trace):
    assert str(trace).startswith("LocalSGD(period=4): loss ")
    assert "after 20 steps on 3 node(s)" in str(trace)
