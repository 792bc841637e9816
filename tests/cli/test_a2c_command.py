"""``flockstep a2c``: trains, tells, draws, saves, resumes."""

import csv
import re
import signal
import subprocess

import pytest
import typer
import warm
from typer.testing import CliRunner

from flockstep.cli import a2c

pytest.importorskip("gymnasium", reason="needs gymnasium")

app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
app.command(help=a2c.HELP)(a2c.a2c)


@pytest.fixture
def command(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])

    return run


@pytest.mark.slow
def test_trains_evaluates_draws_and_saves(command, tmp_path):
    result = command("CartPole-v1", "--steps", "12000", "--episodes", "3", "--threads", "2")
    assert result.exit_code == 0, result.output
    assert re.search(r"of 12,000 steps: return [\d.]+, [\d,]+ steps/s, entropy 0\.6\d+, value loss", result.stderr)
    assert "CartPole-v1: 12,000 steps in" in result.stdout
    assert re.search(r"Evaluation: [\d.]+ \+- [\d.]+ over 3 episode\(s\), each .* solved from 475 on", result.stdout)
    out = tmp_path / "out"
    assert (out / "CartPole-v1.png").read_bytes().startswith(b"\x89PNG")
    with (out / "CartPole-v1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["timesteps"] == "12000"
    assert f"Policy:  {out / 'CartPole-v1.safetensors'}" in result.stdout


@pytest.mark.slow
def test_resumes_where_it_was(command, tmp_path):
    saved = str(tmp_path / "mine.safetensors")
    assert command("CartPole-v1", "--steps", "4000", "--episodes", "1", "--save", saved).exit_code == 0
    again = command("CartPole-v1", "--steps", "2000", "--episodes", "1", "--resume", saved)
    assert again.exit_code == 0, again.output
    assert "CartPole-v1: 6,000 steps in" in again.stdout


# What pygame imports warns of its own old age.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_an_episode_as_a_gif(command, tmp_path, monkeypatch):
    pytest.importorskip("pygame", reason="needs pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    film = tmp_path / "films" / "pole.gif"
    result = command("CartPole-v1", "--steps", "400", "--episodes", "1", "--gif", str(film))
    assert result.exit_code == 0, result.output
    from PIL import Image

    with Image.open(film) as picture:
        assert picture.format == "GIF"
        assert picture.n_frames > 5  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_curves_for_tensorboard(command, tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    result = command("CartPole-v1", "--steps", "8000", "--episodes", "1", "--tensorboard", str(tmp_path / "runs"))
    assert result.exit_code == 0, result.output
    events = accumulator.EventAccumulator(str(tmp_path / "runs")).Reload()
    assert [event.step for event in events.Scalars("rollout/ep_rew_mean")] == [4000, 8000]
    assert events.Scalars("time/fps")[-1].value > 0


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["NoSuch-v1"], "HSA2C.env must be an environment that gymnasium knows", 2),
        (["CartPole-v1", "--policy", "CnnPolicy"], "HSA2C.policy must be MlpPolicy", 2),
        (["CartPole-v1", "--steps", "0"], "a2c.steps must be at least 1, got 0", 2),
        (["CartPole-v1", "--episodes", "0"], "a2c.episodes must be at least 1", 2),
        (["CartPole-v1", "--resume", "nowhere.safetensors"], "No such file: nowhere.safetensors", 1),
    ],
)
def test_mistakes_are_one_sentence(command, arguments, message, code):
    result = command(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_missing_package_is_told_with_the_line_to_type(command, monkeypatch):
    import importlib

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    result = command("CartPole-v1")
    assert result.exit_code == 1
    assert 'pip install "flockstep[rl]"' in result.stderr


def test_help_teaches():
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"})
    for word in ("CartPole-v1 --threads 2", "--resume", "--tensorboard", "--gif", "compiles"):
        assert word in result.output


STARTED = """
import typer
from flockstep.cli import a2c
app = typer.Typer()
app.command()(a2c.a2c)
app()
"""


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [("--threads", "2"), ("--nodes", "2")], ids=" ".join)
@pytest.mark.cases(test=1)
def test_ctrl_c_saves_what_there_is(tmp_path, parallel):
    call = ["-c", STARTED, "CartPole-v1", "--steps", "1000000000", *parallel, "--out", tmp_path]
    process = warm.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # The first line comes when training is under way.
    assert "steps/s" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    told, complained = process.communicate(timeout=120)
    assert process.returncode == 130, complained
    assert "stopping and saving" in complained
    assert "Policy:" in told
    from flockstep.rl import HSA2C

    assert HSA2C.load(tmp_path / "CartPole-v1").num_timesteps > 0
