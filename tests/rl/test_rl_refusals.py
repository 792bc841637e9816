"""What HSA2C refuses, and in which words."""

import importlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from flockstep.rl import HSA2C
from flockstep.rl.environments.copies import Envpool, InProcess, needed, single

gymnasium = pytest.importorskip("gymnasium", reason="needs gymnasium")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threads": 0}, "HSA2C.threads must be at least 1, got 0"),
        ({"envs_per_thread": -1}, "HSA2C.envs_per_thread must be at least 1, got -1"),
        ({"n_steps": 0}, "HSA2C.n_steps must be at least 1, got 0"),
        ({"period": 0}, "HSA2C.period must be at least 1"),
        ({"gamma": 1.5}, "HSA2C.gamma must be between 0 and 1"),
        ({"learning_rate": 0.0}, "HSA2C.learning_rate must be positive"),
        ({"ent_coef": -0.1}, "HSA2C.ent_coef must not be negative"),
        ({"max_grad_norm": 0}, "HSA2C.max_grad_norm must be positive"),
        ({"seed": -1}, "HSA2C.seed must be at least 0"),
        ({"policy": "Mlp"}, "HSA2C.policy must be one of 'MlpPolicy'"),
        ({"policy": "CnnPolicy"}, "HSA2C.policy must be MlpPolicy for observations of shape"),
        ({"env": "CartPol-v1"}, "HSA2C.env must be an environment that gymnasium knows"),
        (
            {"policy_kwargs": {"width": 3}},
            "HSA2C.policy_kwargs of MlpPolicy may have net_arch, shared, activation_fn, ortho_init, log_std_init, "
            "got width",
        ),
        ({"policy_kwargs": {"activation_fn": torch.nn.Linear}}, "activation_fn must be an activation of torch.nn"),
        ({"policy_kwargs": {"activation_fn": torch.nn.GLU}}, "activation_fn must be an activation of torch.nn"),
        ({"policy_kwargs": {"activation_fn": torch.nn.MultiheadAttention}}, "such as torch.nn.ReLU, got <class "),
        ({"policy_kwargs": {"activation_fn": torch.relu}}, "such as torch.nn.ReLU, got <built-in"),
        ({"policy_kwargs": {"activation_fn": type("ReLU", (torch.nn.Module,), {})}}, "must be an activation of torch"),
        ({"policy_kwargs": {"log_std_init": float("nan")}}, "HSA2C.policy_kwargs.log_std_init must be finite"),
        ({"policy_kwargs": {"net_arch": [0]}}, "MlpPolicy.actor must be at least 1, got 0"),
        ({"policy_kwargs": {"net_arch": {"pi": [4], "q": [4]}}}, "must have pi and vf"),
        ({"policy": torch.nn.Linear(4, 2), "policy_kwargs": {"net_arch": [4]}}, "not with a module of your own"),
    ],
)
def test_values(arguments, message):
    given = {"policy": "MlpPolicy", "env": "CartPole-v1"} | arguments
    with pytest.raises(ValueError) as raised:
        HSA2C(given.pop("policy"), given.pop("env"), **given)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threads": 2.0}, "HSA2C.threads must be a whole number, got 2.0"),
        ({"policy": 3}, "HSA2C.policy must be"),
        ({"env": 3}, "HSA2C.env must be a gymnasium id or a function"),
        ({"env": lambda: 3}, "must be a gymnasium environment"),
        ({"policy_kwargs": {"net_arch": "64"}}, "must list the widths"),
        ({"policy_kwargs": {"ortho_init": 1}}, "HSA2C.policy_kwargs.ortho_init must be True or False, got 1"),
        ({"policy_kwargs": {"log_std_init": "0"}}, "HSA2C.policy_kwargs.log_std_init must be a number"),
    ],
)
def test_types(arguments, message):
    given = {"policy": "MlpPolicy", "env": "CartPole-v1"} | arguments
    with pytest.raises(TypeError) as raised:
        HSA2C(given.pop("policy"), given.pop("env"), **given)
    assert message in str(raised.value)


def test_counts_of_calls():
    model = HSA2C("MlpPolicy", "CartPole-v1", seed=0)
    with pytest.raises(ValueError, match=r"HSA2C.total_timesteps must be at least 1"):
        model.learn(0)
    with pytest.raises(ValueError, match=r"HSA2C.episodes must be at least 1"):
        model.evaluate(0)


def test_an_environment_itself_is_made_again():
    model = HSA2C("MlpPolicy", gymnasium.make("CartPole-v1"), seed=0)
    assert model.actions.size == 2


def test_spaces_that_no_policy_here_has():
    class Odd(gymnasium.Env):  # type: ignore[name-defined]
        observation_space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)})
        action_space = gymnasium.spaces.Text(2)

        def reset(self, **_):
            return {}, {}

        def step(self, _):
            raise NotImplementedError

    with pytest.raises(ValueError, match="FlattenObservation"):
        InProcess(Odd, 1)
    Odd.observation_space = gymnasium.spaces.Box(0, 1, (3,))
    with pytest.raises(ValueError, match="must have Discrete, MultiDiscrete, MultiBinary or Box actions"):
        InProcess(Odd, 1)


def test_a_missing_package_says_what_to_type(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "flockstep\[rl\]"'):
        single("CartPole-v1")
    with pytest.raises(ModuleNotFoundError, match="pip install envpool"):
        needed("envpool")
    with pytest.raises(ModuleNotFoundError, match="pip install ale-py"):
        needed("ale_py")


@pytest.mark.slow
def test_the_library_does_not_need_gymnasium_to_be_imported():
    code = "import sys; sys.modules['gymnasium'] = None; import flockstep, flockstep.rl; print('fine')"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "fine"


# envpool's own spaces lose precision, and gymnasium says so.
@pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning")
def test_envpool_counts_no_step_that_only_begins_an_episode():
    pytest.importorskip("envpool", reason="needs envpool")
    env = Envpool("CartPole-v1", 2)
    first = env.reset(3)
    assert first.shape == (2, 4)
    ended, played = np.zeros(2, bool), 0
    for _ in range(40):
        step = env.step(np.zeros(2))
        assert (step.counts == ~ended).all()
        assert (step.rewards[ended] == 0).all()
        ended = step.terminated | step.truncated
        played += step.counts.sum()
    assert 40 < played < 80
    model = HSA2C("MlpPolicy", "CartPole-v1", envpool=True, envs_per_thread=2, seed=0).learn(400)
    assert model.history[-1].episodes > 0
    assert len(model.evaluate(3).returns) == 3
