"""gymnasium's vector environments: every way of beginning anew, against single ones that are stepped by hand."""

from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium", reason="needs gymnasium")

import gymnasium
from gymnasium.spaces import MultiBinary, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from patterns import Patterns
from sides import Mine

from flockstep.errors import NodeFailed
from flockstep.rl import HSA2C
from flockstep.rl.environments.vector_environments import Vector
from flockstep.rl.nodes.workload import ActorCritic
from flockstep.rl.reporting.film import gif
from flockstep.rl.settings import Settings

# They compile fifty functions: half a minute of a core, before any test has begun.
pytestmark = pytest.mark.slow

MODES = list(AutoresetMode)
SMALL = {"policy_kwargs": {"net_arch": [8]}, "period": 7, "seed": 0}


def pole():
    """Some fall before the limit, and some reach it."""
    return gymnasium.make("CartPole-v1", max_episode_steps=12)


def lake():
    return gymnasium.make("FrozenLake-v1", max_episode_steps=6)


def swing():
    return gymnasium.make("Pendulum-v1", max_episode_steps=9)


def several(count, mode=AutoresetMode.NEXT_STEP, source=pole, **options):
    return SyncVectorEnv([source] * count, autoreset_mode=mode, **options)


def by_hand(source, actions, seed, mode):
    """What copies see and are told, stepped one by one: (seen, reward, terminated, truncated, final, counts) each."""
    steps, count = actions.shape[:2]
    rows = [[None] * count for _ in range(steps)]
    firsts = []
    for i in range(count):
        env = source()
        firsts.append(env.reset(seed=seed + i)[0])
        over = False
        for t in range(steps):
            if over and mode is AutoresetMode.NEXT_STEP:
                seen = env.reset()[0]
                rows[t][i], over = (seen, 0.0, False, False, seen, False), False
                continue
            seen, reward, terminated, truncated, _ = env.step(actions[t, i])
            final, over = seen, terminated or truncated
            if over and mode is not AutoresetMode.NEXT_STEP:
                seen = env.reset()[0]
            rows[t][i] = (seen, reward, terminated, truncated, final, True)
    return firsts, rows


def same_as_by_hand(vector, source, actions, mode):
    firsts, rows = by_hand(source, actions, 5, mode)
    encode = vector.observations.encode
    np.testing.assert_array_equal(vector.reset(5), encode(np.stack(firsts)))
    kept = []
    for row, told in zip(rows, actions, strict=True):
        step = vector.step(told)
        seen, rewards, terminated, truncated, finals, counts = (np.stack(column) for column in zip(*row, strict=True))
        np.testing.assert_array_equal(step.observations, encode(seen))
        np.testing.assert_array_equal(step.finals, encode(finals))
        np.testing.assert_array_equal(step.rewards, rewards)
        np.testing.assert_array_equal(step.terminated, terminated)
        np.testing.assert_array_equal(step.truncated, truncated)
        np.testing.assert_array_equal(step.counts, counts)
        kept.append((step, encode(seen)))
    # Nothing was written over since.
    assert all((step.observations == seen).all() for step, seen in kept)
    steps = [step for step, _ in kept]
    return np.array([step.terminated for step in steps]), np.array([step.truncated for step in steps])


def pushes(count, steps=40):
    """The first is always pushed one way and falls, the others to and fro."""
    actions = (np.arange(steps)[:, None] + np.arange(count)) % 2
    actions[:, 0] = 1
    return actions


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.cases(check=6)
def test_episodes_begin_anew_as_the_mode_has_it(mode, count, copy):
    vector = Vector(several(count, mode, copy=copy))
    terminated, truncated = same_as_by_hand(vector, pole, pushes(count), mode)
    assert terminated[:, 0].any()
    assert truncated[:, 1:].any() == (count > 1)
    # A second beginning forgets the first.
    same_as_by_hand(vector, pole, pushes(count, 11), mode)
    vector.close()


@pytest.mark.parametrize("mode", MODES)
def test_discrete_observations(mode):
    vector = Vector(several(3, mode, lake))
    actions = np.random.default_rng(0).integers(0, 4, (40, 3))
    terminated, truncated = same_as_by_hand(vector, lake, actions, mode)
    assert terminated.any()
    assert truncated.any()
    vector.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_copies_in_processes(mode):
    vector = Vector(AsyncVectorEnv([pole] * 2, autoreset_mode=mode))
    same_as_by_hand(vector, pole, pushes(2), mode)
    vector.close()


@pytest.mark.parametrize(
    "space", [MultiDiscrete([[2, 3], [4, 1]], start=[[1, 0], [-3, 2]]), MultiBinary((2, 3))], ids=str
)
def test_several_choices_at_once_reach_every_copy(space):
    vector = Vector(several(3, AutoresetMode.SAME_STEP, partial(Patterns, space)))
    vector.reset(0)
    parts = vector.actions.parts
    for t in range(20):
        # The environment itself looks whether they are in its space.
        vector.step(np.random.default_rng(t).integers(0, parts, (3, len(parts))))
    vector.close()


class Silent(SyncVectorEnv):
    def step(self, actions):
        return *super().step(actions)[:4], {}


def test_a_final_observation_that_is_not_told_is_missed():
    vector = Vector(Silent([pole], autoreset_mode="SameStep"))
    vector.reset(0)
    with pytest.raises(ValueError, match="does not tell final_obs"):
        for _ in range(20):
            vector.step(np.ones(1))


def vector_of(model):
    return torch.cat([p.detach().ravel() for p in model.policy.parameters()])


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("source", [pole, swing])
@pytest.mark.cases(check=4, test=4)
def test_training_is_that_of_single_copies(mode, count, source):
    ours = HSA2C("MlpPolicy", partial(several, count, mode, source), **SMALL).learn(500)
    theirs = HSA2C("MlpPolicy", source, envs_per_thread=count, **SMALL).learn(500)
    assert ours.settings == theirs.settings
    assert torch.equal(vector_of(ours), vector_of(theirs))
    assert ours.history[-1].mean_return == theirs.history[-1].mean_return
    assert ours.history[-1].episodes == theirs.history[-1].episodes > 0
    for each in (ours, theirs):
        each.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync"),
        lambda: gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"),
        lambda: RecordEpisodeStatistics(several(3)),
    ],
    ids=["sync", "its own", "wrapped"],
)
@pytest.mark.cases(test=4)
@pytest.mark.slow
def test_as_a_user_has_it(make, threads, tmp_path):
    model = HSA2C("MlpPolicy", make, threads=threads, **SMALL)
    assert model.settings.envs_per_thread == 3
    assert model.observation_space.shape == (4,)
    assert model.action_space == gymnasium.spaces.Discrete(2)
    model.learn(900)
    assert model.num_timesteps == 900
    assert model.history[-1].episodes > 0
    assert model.predict(np.zeros(4, np.float32))[0] in (0, 1)
    found = model.evaluate(4, seed=1)
    assert found == model.evaluate(4, seed=1)
    twin = HSA2C.load(model.save(tmp_path / "m"), make)
    assert twin.evaluate(4, seed=1) == found
    for each in (model, twin):
        each.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("episodes", [1, 3, 7])
def test_every_copy_plays_as_many_episodes(mode, episodes):
    model = HSA2C("MlpPolicy", partial(several, 3, mode), **SMALL)
    found = model.evaluate(episodes, seed=4)
    by_copy = []
    for i in range(3):
        env = pole()
        seen, _ = env.reset(seed=4 + i)
        for _ in range(i, episodes, 3):
            total, over = 0.0, False
            while not over:
                seen, reward, terminated, truncated, _ = env.step(model.predict(seen, deterministic=True)[0])
                total, over = total + reward, terminated or truncated
            by_copy.append((total, int(total)))
            seen, _ = env.reset()
    assert sorted(zip(found.returns, found.lengths, strict=True)) == sorted(by_copy)
    model.close()


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.cases(test=3)
def test_modules_of_ones_own(mode, threads):
    torch.manual_seed(0)
    model = HSA2C(Mine(), partial(several, 3, mode), threads=threads, seed=0)
    before = vector_of(model)
    model.learn(300)
    assert not torch.equal(vector_of(model), before)
    assert model.history[-1].episodes > 0
    # No episode is longer than its limit, and none has a step that only began it.
    assert max(model.evaluate(3).lengths) <= 12
    model.close()


@pytest.mark.slow
def test_processes_that_would_start_processes_are_told():
    model = HSA2C(Mine(), lambda: AsyncVectorEnv([pole] * 2), threads=2, seed=0)
    with pytest.raises(NodeFailed, match=r"worker \d of 2 raised RuntimeError: HSA2C.env starts processes"):
        model.learn(100)
    model.close()


def test_one_that_gymnasium_made_is_made_again():
    given = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync", max_episode_steps=7)
    model = HSA2C("MlpPolicy", given, **SMALL).learn(150)
    assert model.settings.envs_per_thread == 3
    assert max(model.evaluate(5).lengths) <= 7
    model.close()
    given.close()


def test_how_many_must_agree():
    assert HSA2C("MlpPolicy", partial(several, 8), **SMALL).settings.envs_per_thread == 8
    assert HSA2C("MlpPolicy", partial(several, 2), envs_per_thread=2, **SMALL).settings.envs_per_thread == 2
    for asked in (3, 8):
        with pytest.raises(
            ValueError, match=f"HSA2C.envs_per_thread must be 2, as many as the vector environment has, got {asked}"
        ):
            HSA2C("MlpPolicy", partial(several, 2), envs_per_thread=asked, **SMALL)
    model = HSA2C("MlpPolicy", "CartPole-v1", envs_per_thread=2, **SMALL)
    with pytest.raises(ValueError, match=r"HSA2C.envs_per_thread must be 3"):
        model.set_env(partial(several, 3))
    model.set_env(partial(several, 2))
    assert max(model.learn(100).evaluate(3).lengths) <= 12
    model.close()


def test_a_function_that_makes_more_each_time_is_refused():
    counts = iter((2, 3))
    model = HSA2C("MlpPolicy", lambda: several(next(counts)), **SMALL)
    with pytest.raises(ValueError, match=r"HSA2C.envs_per_thread must be 3, .* got 2"):
        model.learn(100)


def test_what_cannot_be_made_again_is_refused():
    with pytest.raises(TypeError, match="this one cannot be made again"):
        HSA2C("MlpPolicy", several(2))
    wrapped = RecordEpisodeStatistics(gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"))
    with pytest.raises(TypeError, match="must be a function that makes the vector environment and wraps it"):
        HSA2C("MlpPolicy", wrapped)
    with pytest.raises(TypeError, match="must be the name of an environment for envpool"):
        HSA2C("MlpPolicy", partial(several, 2), envpool=True)


def test_a_film_is_of_one(tmp_path):
    model = HSA2C("MlpPolicy", partial(several, 2), **SMALL)
    with pytest.raises(ValueError, match=r"HSA2C.env must make one environment for this, and makes 2 at once"):
        gif(model, tmp_path / "a.gif")
    model.close()


def test_a_workload_steps_them_too():
    workload = ActorCritic(env=partial(several, 3), episodes=4)
    assert workload.settings.envs_per_thread == 3
    x = workload.start()
    assert workload.gradient(x, np.random.default_rng(0)).isfinite().all()
    assert len(workload.returns(x)) == 4
    with pytest.raises(ValueError, match=r"envs_per_thread must be 3"):
        ActorCritic(env=partial(several, 3), settings=Settings(envs_per_thread=2))


# Parts of torch that it imports warn of their own old age.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_those_of_stable_baselines3_are_refused():
    theirs = pytest.importorskip("stable_baselines3.common.vec_env", reason="needs stable-baselines3")
    refused = r"must be an id or a function that makes one environment, in place of stable-baselines3's "
    env = theirs.DummyVecEnv([pole] * 2)
    for given in (env, lambda: env):
        with pytest.raises(TypeError, match=refused + "DummyVecEnv: give that, and envs_per_thread=2"):
            HSA2C("MlpPolicy", given)
    with pytest.raises(TypeError, match=refused + "VecMonitor"):
        HSA2C("MlpPolicy", theirs.VecMonitor(env))
