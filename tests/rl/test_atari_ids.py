"""Atari games as users of gymnasium and stable-baselines3 ask for them: by id, or with gymnasium's own wrappers."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="needs gymnasium")
pytest.importorskip("ale_py", reason="needs ale-py")

import ale_py
import gymnasium
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from flockstep.rl import HSA2C
from flockstep.rl.environments.atari import is_game

gymnasium.register_envs(ale_py)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("ALE/Pong-v5", True),
        ("PongNoFrameskip-v4", True),
        ("PongDeterministic-v4", True),
        ("Pong-v0", True),
        ("Pong-v4", True),
        ("Pong-v5", True),
        ("Pong", True),
        ("MsPacman-v4", True),
        ("CartPole-v1", False),
        ("MountainCarContinuous-v0", False),
        # gymnasium's, though there is a cartridge of that name.
        ("Blackjack-v1", False),
        ("Nothing-v4", False),
    ],
)
def test_which_ids_are_games(name, is_one):
    assert is_game(name) == is_one


def test_a_name_that_somebody_else_registered_is_theirs():
    assert is_game("Surround-v0")
    before = gymnasium.registry.get("Surround-v0")
    try:
        gymnasium.registry.pop("Surround-v0", None)
        gymnasium.register("Surround-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
        assert not is_game("Surround-v0")
        assert HSA2C("MlpPolicy", "Surround-v0", seed=0).observations.shape == (4,)
    finally:
        gymnasium.registry.pop("Surround-v0")
        if before is not None:
            gymnasium.registry["Surround-v0"] = before


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "PongNoFrameskip-v4", "Pong-v4"])
def test_with_images_they_are_our_games(name):
    model = HSA2C("CnnPolicy", name, envs_per_thread=2, seed=0)
    assert model.observations.shape == (4, 84, 84)
    assert model.actions.size == 6
    model.close()


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"HSA2C.policy must be CnnPolicy for images of shape \(210, 160, 3\)"):
        HSA2C("MlpPolicy", "PongNoFrameskip-v4")
    with pytest.raises(ValueError, match=r"atari.game must be one that the emulator has, got 'ALE/Pang-v5', is it "):
        HSA2C("CnnPolicy", "ALE/Pang-v5")
    with pytest.raises(ValueError, match=r"HSA2C.env must be an environment that gymnasium knows"):
        HSA2C("CnnPolicy", "Nothing-v4")


@pytest.fixture
def opencv(monkeypatch):
    """What gymnasium's wrapper asks of OpenCV, where that is not installed: how well it resizes is not the question."""
    try:
        import cv2  # noqa: F401
    except ModuleNotFoundError:

        def resize(screen, size, interpolation):
            rows, columns = np.linspace(0, len(screen) - 1, size[1]), np.linspace(0, screen.shape[1] - 1, size[0])
            return screen[rows.astype(int)][:, columns.astype(int)]

        monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(resize=resize, INTER_AREA=3))


def stacked():
    return FrameStackObservation(AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1)), 4)


@pytest.mark.slow
def test_gymnasiums_preprocessing(opencv, tmp_path):
    model = HSA2C("CnnPolicy", stacked, envs_per_thread=2, period=1, seed=0)
    assert model.observations.shape == (4, 84, 84)
    assert model.observations.dtype == "uint8"
    assert model.policy.eyes.channels == 4
    model.learn(20)
    assert model.num_timesteps == 20
    seen, _ = stacked().reset(seed=0)
    action, _ = model.predict(seen, deterministic=True)
    assert model.action_space.contains(action)
    twin = HSA2C.load(model.save(tmp_path / "pong"), stacked)
    assert twin.predict(seen, deterministic=True)[0] == action
    for each in (model, twin):
        each.close()
