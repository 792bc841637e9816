"""n-step returns against sums written out."""

import numpy as np
import pytest

from flockstep.rl.compiled.compiled_worker import rollout_arrays
from flockstep.rl.compiled.layout import Plan
from flockstep.rl.compiled.network import block
from flockstep.rl.compiled.update import fill_returns
from flockstep.rl.policies.mlp import MlpPolicy
from flockstep.rl.returns import n_step_returns
from flockstep.rl.settings import Settings

GAMMA = 0.9


def oracle(rewards, terminated, truncated, final_values, bootstrap):
    """R_t by its definition: rewards to the end of the episode or of the roll-out, then a value or nothing."""
    steps, envs = rewards.shape
    returns = np.zeros((steps, envs))
    for e in range(envs):
        for t in range(steps):
            total, factor = 0.0, 1.0
            for later in range(t, steps):
                total += factor * rewards[later, e]
                factor *= GAMMA
                if terminated[later, e]:
                    factor = 0.0
                    break
                if truncated[later, e]:
                    total, factor = total + factor * final_values[later, e], 0.0
                    break
            returns[t, e] = total + factor * bootstrap[e]
    return returns


def case(steps, envs, seed):
    rng = np.random.default_rng(seed)
    rewards, final_values = rng.standard_normal((2, steps, envs))
    terminated, truncated = rng.random((2, steps, envs)) < 0.25
    return rewards, terminated, truncated, final_values, rng.standard_normal(envs)


@pytest.mark.parametrize(("steps", "envs"), [(1, 1), (2, 1), (1, 5), (5, 2), (7, 3)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_returns_are_the_sums_they_stand_for(steps, envs, seed):
    rewards, terminated, truncated, final_values, bootstrap = case(steps, envs, seed)
    expected = oracle(rewards, terminated, truncated, final_values, bootstrap)
    found = n_step_returns(rewards, terminated, truncated, final_values, bootstrap, GAMMA)
    np.testing.assert_allclose(found, expected, rtol=1e-12)

    policy = MlpPolicy(2, 2, discrete=True, actor=(), critic=())
    plan = Plan.of(policy)
    roll = rollout_arrays(plan, Settings(n_steps=steps, envs_per_thread=envs), 1, np.float64)
    roll.rewards[:], roll.final_values[:] = rewards, final_values
    roll.ends[:] = np.where(terminated, 1, 2 * truncated)
    block(roll.acts, (steps + 1) * envs, plan.net.value, 1)[-envs:, 0] = bootstrap
    fill_returns(plan.net, roll, GAMMA, 1.0)
    np.testing.assert_allclose(roll.returns, expected, rtol=1e-12)


def advantages(rewards, terminated, truncated, final_values, bootstrap, values, gae_lambda):
    """By their definition: how much better each step came out than expected, later ones counting less."""
    steps, envs = rewards.shape
    found = np.zeros((steps, envs))
    for e in range(envs):
        for t in range(steps):
            factor = 1.0
            for later in range(t, steps):
                ended, cut = terminated[later, e], truncated[later, e]
                then = 0.0 if ended else final_values[later, e] if cut else [*values[1:, e], bootstrap[e]][later]
                found[t, e] += factor * (rewards[later, e] + GAMMA * then - values[later, e])
                factor *= GAMMA * gae_lambda
                if ended or cut:
                    break
    return found


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(("steps", "envs"), [(1, 1), (2, 1), (1, 5), (5, 2), (7, 3)])
def test_returns_less_values_are_generalized_advantages(steps, envs, gae_lambda):
    rewards, terminated, truncated, final_values, bootstrap = case(steps, envs, 3)
    values = np.random.default_rng(4).standard_normal((steps, envs))
    told = (rewards, terminated, truncated, final_values, bootstrap)
    expected = advantages(*told, values, gae_lambda)
    found = n_step_returns(*told, GAMMA, values=values, gae_lambda=gae_lambda) - values
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)

    plan = Plan.of(MlpPolicy(2, 2, discrete=True, actor=(), critic=()))
    roll = rollout_arrays(plan, Settings(n_steps=steps, envs_per_thread=envs), 1, np.float64)
    roll.rewards[:], roll.final_values[:] = rewards, final_values
    roll.ends[:] = np.where(terminated, 1, 2 * truncated)
    block(roll.acts, (steps + 1) * envs, plan.net.value, 1)[:, 0] = np.concatenate([values.ravel(), bootstrap])
    fill_returns(plan.net, roll, GAMMA, gae_lambda)
    np.testing.assert_allclose(roll.returns - values, expected, rtol=1e-10, atol=1e-12)


def test_an_end_counts_more_than_a_cut_at_the_same_step():
    one = np.ones((1, 1))
    found = n_step_returns(one, one.astype(bool), one.astype(bool), 100 * one, np.array([50.0]), GAMMA)
    assert found[0, 0] == 1.0
