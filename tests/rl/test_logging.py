"""What ``learn`` says while it runs: lines, and curves for TensorBoard."""

import pytest

from flockstep.rl import HSA2C, EvalCallback
from flockstep.rl.reporting.tensorboard import run_folder

# They compile fifty functions: half a minute of a core, before any test has begun.
pytestmark = pytest.mark.slow

gymnasium = pytest.importorskip("gymnasium", reason="needs gymnasium")

# A row every 7 updates of 10 steps.
SMALL = {"policy_kwargs": {"net_arch": [8]}, "envs_per_thread": 2, "period": 7, "seed": 0}


def steps_said(text):
    return [int(line.split(" of ")[0].replace(",", "")) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("interval", "wanted"),
    [
        (None, [70, 140, 210, 280, 350, 420]),
        (1, [70, 140, 210, 280, 350, 420]),
        (10, [140, 210, 350, 420]),
        (42, [420]),
    ],
)
def test_lines_come_every_so_many_updates(interval, wanted, capsys):
    model = HSA2C("MlpPolicy", "CartPole-v1", verbose=1, **SMALL).learn(420, log_interval=interval)
    assert steps_said(capsys.readouterr().err) == wanted
    model.learn(140, log_interval=interval, reset_num_timesteps=False)
    # Of 140 steps, each row is a tenth and more.
    assert steps_said(capsys.readouterr().err) == ([560] if interval == 10 else [] if interval == 42 else [490, 560])
    HSA2C("MlpPolicy", "CartPole-v1", **SMALL).learn(140, log_interval=interval)
    assert capsys.readouterr().err == ""


def test_without_an_interval_there_are_ten_lines_and_the_first(capsys):
    HSA2C("MlpPolicy", "CartPole-v1", verbose=1, **SMALL).learn(70 * 50)
    assert steps_said(capsys.readouterr().err) == [70, *range(350, 3501, 350)]


@pytest.mark.parametrize("threads", [2, 3])
def test_updates_of_all_threads_count(threads, capsys):
    model = HSA2C("MlpPolicy", "CartPole-v1", verbose=1, threads=threads, **SMALL).learn(2100, log_interval=100)
    # Wherever rows fall, each line is the first at or after its multiple.
    rows, said = [row.timesteps for row in model.history], steps_said(capsys.readouterr().err)
    assert said == sorted({next(steps for steps in rows if steps >= multiple) for multiple in (1000, 2000)})


def test_an_interval_is_a_count():
    model = HSA2C("MlpPolicy", "CartPole-v1", **SMALL)
    with pytest.raises(ValueError, match=r"HSA2C.log_interval must be at least 1, got 0"):
        model.learn(70, log_interval=0)


def test_runs_are_counted_as_stable_baselines3_does(tmp_path):
    assert run_folder(tmp_path / "none", "A", go_on=False).name == "A_1"
    assert run_folder(tmp_path / "none", "A", go_on=True).name == "A_1"
    for name in ("A_2", "A_10", "A_x", "A_", "AB_30", "A_3_40"):
        (tmp_path / name).mkdir()
    assert run_folder(tmp_path, "A", go_on=False).name == "A_11"
    assert run_folder(tmp_path, "A", go_on=True).name == "A_10"
    assert run_folder(tmp_path, "A_3", go_on=False).name == "A_3_41"


# Parts of torch that it imports warn of their own old age.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_curves_go_to_a_folder_for_each_training(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )

    def points(folder, label):
        events = accumulator.EventAccumulator(str(tmp_path / folder)).Reload()
        return {event.step: event.value for event in events.Scalars(label)}

    model = HSA2C("MlpPolicy", "CartPole-v1", tensorboard_log=tmp_path, **SMALL)
    looking = EvalCallback(eval_freq=200, verbose=0)
    model.learn(280, looking)
    assert points("HSA2C_1", "train/value_loss") == pytest.approx(
        {row.timesteps: row.value_loss for row in model.history}
    )
    (steps, found), *none = looking.evaluations
    assert points("HSA2C_1", "eval/mean_reward") == pytest.approx({steps: found.mean})
    assert points("HSA2C_1", "eval/mean_ep_length") == pytest.approx({steps: found.mean})
    assert not none
    assert model.board is None
    model.learn(280, log_interval=10)
    assert list(points("HSA2C_2", "train/entropy")) == [140, 210]
    model.learn(140, log_interval=10, reset_num_timesteps=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["HSA2C_1", "HSA2C_2"]
    assert list(points("HSA2C_2", "train/entropy")) == [140, 210, 350, 420]
    model.learn(70, tb_log_name="mine")
    assert list(points("mine_1", "time/fps")) == [70]


def test_without_tensorboard_training_says_so_before_it_begins(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tensorboard", None)
    model = HSA2C("MlpPolicy", "CartPole-v1", tensorboard_log=tmp_path, **SMALL)
    with pytest.raises(ModuleNotFoundError, match="pip install tensorboard"):
        model.learn(70)
    assert model.num_timesteps == 0
