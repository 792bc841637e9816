"""Compiled environments against gymnasium's, step by step."""

import numba
import numpy as np
import pytest

from flockstep.rl.compiled.classic import ACROBOT, CAR, CARTPOLE, KNOWN, PENDULUM, STATE, begin, bounded, move, observe
from flockstep.rl.compiled.compiled_rollout import GOES_ON, TERMINATED, TRUNCATED
from flockstep.rl.compiled.compiled_worker import Worker
from flockstep.rl.compiled.layout import Plan
from flockstep.rl.policies.mlp import MlpPolicy
from flockstep.rl.settings import Settings

# They compile fifty functions: half a minute of a core, before any test has begun.
pytestmark = pytest.mark.slow

gymnasium = pytest.importorskip("gymnasium", reason="needs gymnasium")

NAMES = [name for name in KNOWN if name != "CartPole-v0"]
# Where gymnasium computes in float64 throughout; two mix float32 in.
EXACT = {CARTPOLE, ACROBOT, CAR}


def state_of(env):
    state = np.zeros(STATE)
    given = np.asarray(env.unwrapped.state, np.float64)
    state[: given.size] = given
    return state


def seen(kind, state, like):
    out = np.zeros(like.shape, like.dtype)
    observe(kind, state, out)
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_every_step_is_gymnasiums(name):
    kind, env = KNOWN[name].kind, gymnasium.make(name)
    tolerance = 1e-12 if kind in EXACT else 1e-6
    env.reset(seed=3)
    env.action_space.seed(4)
    ends = 0
    for _ in range(1000):
        state, action = state_of(env), env.action_space.sample()
        observation, reward, terminated, truncated, _ = env.step(action)
        given = bounded(kind, float(np.ravel(action)[0]))
        found, ended = move(kind, state, given)
        assert ended == terminated
        assert found == pytest.approx(reward, rel=tolerance, abs=tolerance)
        np.testing.assert_allclose(state, state_of(env), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(seen(kind, state, observation), observation, rtol=1e-6, atol=1e-6)
        if terminated or truncated:
            ends += 1
            env.reset()
    assert ends


@pytest.mark.parametrize(
    ("name", "place", "action"), [("MountainCar-v0", 0.49, 2), ("MountainCarContinuous-v0", 0.44, 1.0)]
)
def test_a_car_that_arrives(name, place, action):
    env, kind = gymnasium.make(name), KNOWN[name].kind
    env.reset(seed=0)
    env.unwrapped.state = np.array([place, 0.05])
    told = env.step(np.array([action], np.float32) if kind != CAR else action)
    state = np.array([place, 0.05, 0, 0])
    reward, ended = move(kind, state, float(action))
    assert ended
    assert told[2]
    assert reward == pytest.approx(told[1], abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_episodes_begin_as_gymnasiums_do(name):
    kind, env, rng = KNOWN[name].kind, gymnasium.make(name), np.random.default_rng(7)
    for count in range(3):
        observation, _ = env.reset(seed=7 if count == 0 else None)
        state = np.zeros(STATE)
        begin(kind, rng, state)
        np.testing.assert_array_equal(state, state_of(env))
        np.testing.assert_allclose(seen(kind, state, observation), observation, rtol=1e-6)


def test_they_do_so_where_a_network_was_compiled_around_them_first():
    """Sums of networks may be taken in any order. Games once took that over, and began a rounding away."""
    anew = numba.jit(**begin.targetoptions)(begin.py_func)
    loosely = numba.njit(fastmath=True)(lambda kind, rng, state: anew(kind, rng, state))
    drawn, wanted = np.zeros((2, 100, STATE)), np.random.default_rng(7)
    loosely(CARTPOLE, np.random.default_rng(0), drawn[0, 0])
    rng = np.random.default_rng(7)
    for state in drawn[1]:
        anew(CARTPOLE, rng, state)
    np.testing.assert_array_equal(drawn[1], wanted.uniform(-0.05, 0.05, (100, STATE)))


@pytest.mark.parametrize("name", KNOWN)
def test_names_and_limits_are_gymnasiums(name):
    if name in gymnasium.registry:
        assert gymnasium.spec(name).max_episode_steps == KNOWN[name].limit


def test_actions_are_cut_to_their_bounds():
    assert bounded(PENDULUM, -7.0) == -2.0
    assert bounded(KNOWN["MountainCarContinuous-v0"].kind, 1.5) == 1.0
    assert bounded(CARTPOLE, 1.0) == 1.0


@pytest.mark.parametrize("envs", [1, 2, 5])
def test_a_rollout_shows_ends_and_what_comes_after(envs):
    """In short episodes: what a row sees follows from the row before by gymnasium, or is a new start."""
    policy = MlpPolicy(4, 2, discrete=True, actor=(8,), critic=(8,))
    settings = Settings(n_steps=40, envs_per_thread=envs)
    worker = Worker(Plan.of(policy), settings, "CartPole-v1", inputs=4, dims=1, rng=np.random.default_rng(0))
    # Nearly at the time limit.
    worker._ages[:] = 500 - 5 - np.arange(envs)
    states = worker._world.states.copy()
    worker.gradient(worker.own.theta.copy())
    roll, env = worker.roll, gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    assert {GOES_ON, TERMINATED, TRUNCATED} == set(np.unique(roll.ends).tolist())
    rows = np.stack([worker._seen(t) for t in range(settings.n_steps + 1)])
    ages = 500 - 5 - np.arange(envs)
    for e in range(envs):
        env.unwrapped.state = states[e].copy()
        for t in range(settings.n_steps):
            _, reward, terminated, _, _ = env.unwrapped.step(int(roll.actions[t, e, 0]))
            ages[e] += 1
            expected = TERMINATED if terminated else TRUNCATED if ages[e] >= 500 else GOES_ON
            assert roll.ends[t, e] == expected
            assert roll.rewards[t, e] == reward
            if expected == GOES_ON:
                np.testing.assert_allclose(rows[t + 1, e], env.unwrapped.state, rtol=1e-5, atol=1e-6)
            else:
                assert (np.abs(rows[t + 1, e]) <= 0.05).all()
                env.unwrapped.state, ages[e] = rows[t + 1, e].astype(np.float64), 0
                env.unwrapped.steps_beyond_terminated = None
