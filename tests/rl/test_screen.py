"""The game that is filmed is the game that is trained on."""

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="needs pip install 'flockstep[rl]'")
pytest.importorskip("ale_py", reason="ale_py is not installed")

from ale_py.vector_env import AtariVectorEnv

from flockstep.rl.environments.screen import Screen, _areas
from flockstep.rl.hsa2c import HSA2C
from flockstep.rl.reporting.film import gif


@pytest.mark.parametrize(("before", "after"), [(4, 2), (3, 2), (210, 84), (5, 5)])
def test_a_point_is_the_mean_of_its_area(before, after):
    weights = _areas(before, after)
    np.testing.assert_allclose(weights.sum(1), 1)
    np.testing.assert_allclose(weights.sum(0), after / before)
    fine = np.repeat(np.arange(before, dtype=float), after)
    np.testing.assert_allclose(weights @ np.arange(before), fine.reshape(after, before).mean(1))


@pytest.mark.parametrize("game", ["pong", "breakout", "ms_pacman"])
@pytest.mark.cases(check=1)
@pytest.mark.slow
def test_what_is_shown_is_what_training_shows(game):
    # Without idle frames, of which each draws its own number.
    games = AtariVectorEnv(game, 1, noop_max=0, life_loss_info=True, reward_clipping=False)
    screen, rng = Screen(game, idle=0), np.random.default_rng(0)
    try:
        theirs, (ours, _) = games.reset(seed=3)[0], screen.reset(seed=3)
        assert np.abs(ours[-1].astype(int) - theirs[0, -1]).max() <= 1
        for _ in range(80):
            action = int(rng.integers(games.single_action_space.n))  # type: ignore[attr-defined]
            theirs, points, *_ = games.step(np.array([action]))
            ours, own, over, _, _ = screen.step(action)
            assert own == points[0]
            assert not over
        # Four steps after a beginning all four screens are the game's; a mean may be rounded the other way.
        assert np.abs(ours.astype(int) - theirs[0]).max() <= 1
        assert screen.render().shape == (210, 160, 3)
    finally:
        games.close()


@pytest.mark.slow
def test_a_game_begins_as_its_seed_says():
    screen = Screen("ALE/Pong-v5")
    later = []
    for seed in (1, 1, 2, 3, 4):
        screen.reset(seed=seed)
        later.append([screen.step(0)[0] for _ in range(40)][-1])
    assert (later[0] == later[1]).all()
    assert any((later[0] != other).any() for other in later[2:])


@pytest.mark.thorough
def test_a_film_of_a_game(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs pip install 'flockstep[rl]'")
    model = HSA2C("A3CPolicy", "ALE/Pong-v5", envs_per_thread=1, seed=0)
    with image.open(gif(model, tmp_path / "pong.gif", seed=0)) as film:
        assert film.n_frames > 100
        assert film.size == (160, 210)
    model.close()
