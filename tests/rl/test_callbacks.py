"""Callbacks that look at the model: when they look, what they find and keep, and that training does not notice."""

import numpy as np
import pytest
import torch
from sides import Glance, Sides

from flockstep.rl import HSA2C, CheckpointCallback, EvalCallback
from flockstep.rl.reporting.callbacks import Every

# They compile fifty functions: half a minute of a core, before any test has begun.
pytestmark = pytest.mark.slow

gymnasium = pytest.importorskip("gymnasium", reason="needs gymnasium")

# A row every 7 updates of 10 steps.
SMALL = {"policy_kwargs": {"net_arch": [8]}, "envs_per_thread": 2, "period": 7, "seed": 0}


def cartpole():
    return gymnasium.make("CartPole-v1")


def short_pole():
    return gymnasium.make("CartPole-v1", max_episode_steps=5)


def parameters(model):
    return torch.cat([p.detach().ravel() for p in model.policy.parameters()])


def glance():
    torch.manual_seed(0)
    return HSA2C(Glance(), Sides, envs_per_thread=2, period=7, seed=0)


MODELS = {
    "compiled": lambda: HSA2C("MlpPolicy", "CartPole-v1", **SMALL),
    "stepped by Python": lambda: HSA2C("MlpPolicy", cartpole, **SMALL),
    "real-valued": lambda: HSA2C("MlpPolicy", "Pendulum-v1", **SMALL),
    "torch": glance,
}


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.cases(test=3)
@pytest.mark.slow
def test_training_does_not_notice_evaluations(name, deterministic):
    alone, watched = MODELS[name](), MODELS[name]()
    looking = EvalCallback(eval_freq=1, n_eval_episodes=1, deterministic=deterministic, verbose=0)
    alone.learn(350)
    watched.learn(350, looking)
    assert len(looking.evaluations) == 5
    assert torch.equal(parameters(alone), parameters(watched))
    for statistic, twin in zip(alone._ready().state().values(), watched._ready().state().values(), strict=True):
        assert torch.equal(statistic, twin)
    # Nor do those who draw actions from the model.
    seen = np.zeros((50, *alone.observations.shape), np.float32 if name != "torch" else np.uint8)
    np.testing.assert_array_equal(alone.predict(seen)[0], watched.predict(seen)[0])


@pytest.mark.parametrize(
    ("freq", "wanted"),
    [(1, [70, 140, 210, 280, 350, 420]), (70, [70, 140, 210, 280, 350, 420]), (100, [140, 210, 350, 420]), (421, [])],
)
def test_it_looks_at_the_first_row_after_so_many_steps(freq, wanted):
    looking = EvalCallback(eval_freq=freq, n_eval_episodes=2, verbose=0)
    HSA2C("MlpPolicy", "CartPole-v1", **SMALL).learn(420, looking)
    assert [steps for steps, _ in looking.evaluations] == wanted
    assert all(len(found.returns) == 2 for _, found in looking.evaluations)


def test_steps_go_on_where_the_last_call_was():
    looking, model = EvalCallback(eval_freq=200, verbose=0), HSA2C("MlpPolicy", "CartPole-v1", **SMALL)
    model.learn(140, looking)
    assert looking.evaluations == []
    model.learn(140, looking, reset_num_timesteps=False)
    assert [steps for steps, _ in looking.evaluations] == [210]
    model.learn(210, looking)
    assert [steps for steps, _ in looking.evaluations] == [210, 210]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("env", ["CartPole-v1", cartpole])
@pytest.mark.cases(check=1, test=3)
@pytest.mark.slow
def test_the_best_model_is_the_one_that_was_played(threads, env, tmp_path):
    looking = EvalCallback(eval_freq=500, n_eval_episodes=3, seed=4, best_model_save_path=tmp_path / "best", verbose=0)
    # Large steps, so that one update more plays otherwise.
    model = HSA2C("MlpPolicy", env, threads=threads, learning_rate=0.05, **SMALL).learn(5000, looking)
    means = [found.mean for _, found in looking.evaluations]
    assert looking.best_mean_reward == max(means)
    assert looking.last_mean_reward == means[-1]
    # The first of those that are equally good.
    steps, best = looking.evaluations[means.index(max(means))]
    kept = HSA2C.load(tmp_path / "best" / "best_model", env)
    assert kept.num_timesteps == steps
    assert kept.history[-1].timesteps == steps
    assert kept.settings == model.settings
    assert kept.evaluate(3, seed=4) == best


@pytest.mark.parametrize(("threshold", "evaluations", "steps"), [(1.0, 1, 140), (501.0, 4, 420)])
def test_a_mean_return_can_end_training(threshold, evaluations, steps):
    looking = EvalCallback(eval_freq=100, reward_threshold=threshold, verbose=0)
    model = HSA2C("MlpPolicy", "CartPole-v1", **SMALL).learn(420, [lambda row: True, looking])
    assert len(looking.evaluations) == evaluations
    assert model.num_timesteps == steps


@pytest.mark.parametrize("env", [short_pole, short_pole()], ids=["function", "environment"])
def test_it_can_play_elsewhere(env):
    looking = EvalCallback(env, eval_freq=100, verbose=0)
    model = HSA2C("MlpPolicy", "CartPole-v1", **SMALL).learn(210, looking)
    assert [found.lengths for _, found in looking.evaluations] == [(5,) * 5] * 2
    assert max(model.evaluate(5, seed=0).lengths) > 5
    with pytest.raises(ValueError, match=r"HSA2C.env must show Box\(.*\) and take Discrete\(2\), as before, got "):
        model.learn(100, EvalCallback("Acrobot-v1", eval_freq=1))


def test_what_it_says(capsys):
    model = HSA2C("MlpPolicy", "CartPole-v1", **SMALL)
    model.learn(70, EvalCallback(eval_freq=10, verbose=0))
    assert capsys.readouterr() == ("", "")
    looking = EvalCallback(eval_freq=10)
    model.learn(70, looking)
    said = f"70 steps: evaluation {looking.evaluations[0][1]}, the best so far\n"
    assert capsys.readouterr() == ("", said)


def test_checkpoints_are_models_to_go_on_from(tmp_path, capsys):
    saving = CheckpointCallback(100, tmp_path, name_prefix="v1.0")
    model = HSA2C("MlpPolicy", "CartPole-v1", **SMALL).learn(280, saving)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"v1.0_{steps}_steps.safetensors" for steps in (140, 210)
    ]
    assert capsys.readouterr() == ("", "")
    saved = HSA2C.load(tmp_path / "v1.0_210_steps.safetensors")
    assert saved.num_timesteps == 210
    assert not torch.equal(parameters(saved), parameters(model))
    assert saved.learn(70, CheckpointCallback(280, tmp_path), reset_num_timesteps=False).num_timesteps == 280
    assert (tmp_path / "rl_model_280_steps.safetensors").exists()


def test_a_snapshot_stays_as_it_is():
    model = HSA2C("MlpPolicy", "CartPole-v1", **SMALL).learn(70)
    still = model.snapshot()
    before, squares, played = parameters(model), model._ready().state()["squares"], model.evaluate(2, seed=0)
    model.learn(2000, reset_num_timesteps=False)
    assert torch.equal(parameters(still), before)
    assert torch.equal(still._ready().state()["squares"], squares)
    assert not torch.equal(model._ready().state()["squares"], squares)
    assert (still.num_timesteps, len(still.history)) == (70, 1)
    assert still.evaluate(2, seed=0) == played


def test_callbacks_that_are_none():
    model = HSA2C("MlpPolicy", "CartPole-v1", **SMALL).learn(70)
    with pytest.raises(RuntimeError, match=r"EvalCallback is for HSA2C.learn"):
        EvalCallback()(model.history[-1])
    with pytest.raises(TypeError, match=r"HSA2C.callback must be a function of a row of the history, got 3"):
        model.learn(70, 3)
    for arguments, message in (
        ({"eval_freq": 0}, r"EvalCallback.eval_freq must be at least 1"),
        ({"n_eval_episodes": 0}, r"EvalCallback.n_eval_episodes must be at least 1"),
        ({"seed": -1}, r"EvalCallback.seed must be at least 0"),
        ({"reward_threshold": float("nan")}, r"EvalCallback.reward_threshold must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            EvalCallback(**arguments)
    with pytest.raises(ValueError, match=r"CheckpointCallback.save_freq must be at least 1"):
        CheckpointCallback(0, "nowhere")
    # Nothing of that touched the model.
    assert len(model.history) == 1


@pytest.mark.parametrize("since", [0, 5, 7, 20])
def test_every_so_many_steps(since):
    every = Every(7, since)
    due = [steps for steps in range(since, 60) if every.due(steps)]
    assert due == [steps for steps in range(since + 1, 60) if steps % 7 == 0]
    assert Every(7).due(1000)


@pytest.mark.slow
def test_processes_train_on_while_it_looks(tmp_path):
    torch.manual_seed(0)
    model = HSA2C(Glance(), Sides, threads=2, envs_per_thread=2, period=7, seed=0)
    looking = EvalCallback(
        eval_freq=200, n_eval_episodes=3, seed=4, best_model_save_path=tmp_path, reward_threshold=0.0, verbose=0
    )
    model.learn(10**9, looking)
    assert len(looking.evaluations) == 1
    kept = HSA2C.load(tmp_path / "best_model", Sides, policy=Glance())
    assert kept.num_timesteps == looking.evaluations[0][0]
    assert kept.evaluate(3, seed=4) == looking.evaluations[0][1]
    model.close()
