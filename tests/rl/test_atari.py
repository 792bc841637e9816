"""Atari games: what is seen, what counts, and the scores of whole games."""

from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest

from flockstep.rl.environments import atari as module
from flockstep.rl.environments.atari import Games, atari, title

EMULATORS = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"))
    for name in ("ale_py", "envpool")
]


def test_names_of_games():
    for name in ("Pong", "ALE/Pong-v5", "PongNoFrameskip-v4", "pong", "Pong-v5"):
        assert title(name) == "Pong"
    assert title("ms_pacman") == title("ALE/MsPacman-v5") == "MsPacman"


def test_scores_are_of_whole_games():
    games = Games(2)
    yes, no = np.array([True, True]), np.array([False, False])
    games.add(np.array([10.0, 1.0]), no, yes)
    games.add(np.array([5.0, 2.0]), np.array([True, False]), yes)
    # The first only begins anew: what it is told there counts for nothing.
    games.add(np.array([99.0, 4.0]), no, np.array([False, True]))
    games.add(np.array([1.0, 0.0]), yes, yes)
    assert games.ended() == [(15.0, 2), (1.0, 1), (7.0, 4)]
    assert games.ended() == []


@pytest.mark.parametrize("emulator", EMULATORS)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.cases(check=1)
def test_games_are_seen_as_four_small_grey_screens(emulator, count):
    games = atari("Pong", count, emulator=emulator)
    try:
        first = games.reset(seed=3).copy()
        assert first.shape == (count, 4, 84, 84)
        assert first.dtype == np.uint8
        assert games.actions.size == 6
        seen = [games.step(np.full(count, t % 6)).observations.copy() for t in range(12)]
        # A step later, a screen is where the next was before.
        assert all((b[:, :3] == a[:, 1:]).all() for a, b in pairwise(seen))
        assert (games.reset(seed=3) == first).all()
    finally:
        games.close()


@pytest.mark.slow
@pytest.mark.parametrize("emulator", EMULATORS)
def test_a_lost_life_ends_an_episode_and_not_the_game(emulator):
    games = atari("Breakout", 2, emulator=emulator)
    rng, ends, begins, signs, scores = np.random.default_rng(0), 0, 0, set(), []
    try:
        games.reset(seed=1)
        while len(scores) < 4 or len(signs) < 2:
            step = games.step(rng.integers(0, 4, 2))
            ends += int(step.terminated.sum())
            begins += int((~step.counts).sum())
            signs |= set(step.rewards)
            scores += games.ended()  # type: ignore[attr-defined]
    finally:
        games.close()
    # Five lives a game.
    assert ends >= 5 * 4
    assert abs(begins - (ends if emulator == "envpool" else 0)) <= 2
    assert signs == {0.0, 1.0}
    assert all(points >= 0 and length > 20 for points, length in scores)


@pytest.mark.slow
@pytest.mark.parametrize("emulator", EMULATORS)
def test_a_whole_game_of_pong(emulator):
    games = atari("Pong", 1, emulator=emulator)
    rng, total, scores = np.random.default_rng(0), 0.0, []
    try:
        games.reset(seed=1)
        while not scores:
            step = games.step(rng.integers(0, 6, 1))
            total += float(step.rewards[0])
            scores = games.ended()  # type: ignore[attr-defined]
    finally:
        games.close()
    assert -21 <= total <= 21
    assert scores[0][0] == total
    assert step.terminated[0]


def test_what_is_missing_is_told(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install ale-py"):
        atari("Pong", 1)
    with pytest.raises(ValueError, match=r"atari\.emulator"):
        atari("Pong", 1, emulator="stella")
    with pytest.raises(ValueError, match=r"atari\.count"):
        atari("Pong", 0)


@pytest.mark.parametrize("emulator", EMULATORS)
def test_games_that_nobody_made(emulator):
    with pytest.raises(ValueError, match=r"atari\.game"):
        atari("Pang", 1, emulator=emulator)
