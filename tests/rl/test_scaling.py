"""Observations and rewards are normalized by what all have met in training, against NumPy; playing changes nothing."""

from typing import ClassVar

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium", reason="needs pip install 'flockstep[rl]'")

import gymnasium

from flockstep.rl.compiled.compiled_worker import Worker
from flockstep.rl.compiled.layout import Plan
from flockstep.rl.environments.copies import InProcess
from flockstep.rl.hsa2c import HSA2C
from flockstep.rl.nodes.learn_nodes import learn_on_nodes
from flockstep.rl.nodes.workload import ActorCritic
from flockstep.rl.policies.mlp import MlpPolicy, normalized
from flockstep.rl.settings import Settings

# They compile fifty functions: half a minute of a core, before any test has begun.
pytestmark = pytest.mark.slow

GAMMA = 0.9
BOTH = {"normalize_observations": True, "normalize_rewards": True}


class Far:
    """Numbers far from 0 and 1, rewards in thousands; keeps what it showed and gave. Made as a user would make it."""

    made: ClassVar[list["Far"]] = []

    def __init__(self, episode=7):
        from gymnasium.spaces import Box, Discrete

        self.observation_space, self.action_space = Box(-np.inf, np.inf, (3,)), Discrete(2)
        self._episode, self.shown, self.given = episode, [], []
        type(self).made.append(self)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._at = 0
        return self._look(), {}

    def step(self, action):
        self._at += 1
        ended = self._at == self._episode
        reward = float(self._rng.normal(1000, 500)) * (1 + int(action))
        self.given.append((reward, ended))
        return self._look(), reward, ended, False, {}

    def close(self):
        pass

    def _look(self):
        # The last of an episode is shown to nobody but who values a cut, and is not acted on.
        row = self._rng.normal([5.0, -40.0, 0.0], [2.0, 7.0, 1e-3]).astype(np.float32)
        self.shown.append((row, self._at == self._episode))
        return row


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(Far, "made", [])
    return Far


def acted_on(envs, steps):
    """What every environment showed to be acted on in its first ``steps`` steps, (steps, envs, numbers)."""
    return np.stack([[row for row, last in env.shown if not last][:steps] for env in envs], 1)


def statistics(rows):
    """Of (rows, numbers), with the ten-thousandth of a row of mean 0 and variance 1 that all begin with."""
    count = len(rows) + 1e-4
    mean = rows.sum(0) / count
    return mean, np.sqrt(np.maximum(((rows**2).sum(0) + 1e-4) / count - mean**2, 0) + 1e-8)


def discounted(envs, steps):
    """R of every step, (steps, envs), and the rewards."""
    totals, rewards = [], []
    for env in envs:
        total, own = 0.0, []
        for reward, ended in env.given[:steps]:
            total = GAMMA * total + reward
            own.append(total)
            total = 0.0 if ended else total
        totals.append(own)
        rewards.append([reward for reward, _ in env.given[:steps]])
    return np.array(totals).T, np.array(rewards).T


@pytest.mark.parametrize("envs", [1, 2, 5])
@pytest.mark.slow
def test_a_rollout_is_normalized_by_all_that_was_met_before(far, envs):
    policy = MlpPolicy(3, 2, discrete=True, actor=(4,), critic=(4,), **BOTH)
    plan, settings = Plan.of(policy), Settings(n_steps=3, envs_per_thread=envs, gamma=GAMMA)
    games = InProcess(far, envs)
    rng = np.random.default_rng(0)
    worker = Worker(plan, settings, games, inputs=3, dims=1, rng=rng, dtype=np.float64)
    theta, squares = np.zeros(plan.size), np.ones(plan.size)
    plan.pack(policy, theta)
    mine = far.made[-envs:]
    for round in range(6):
        worker.train(theta, squares, np.array([1e-3]))
        before, now = 3 * round, 3 * (round + 1)
        seen = acted_on(mine, now).astype(np.float64)
        mean, deviation = statistics(seen[:before].reshape(-1, 3))
        wanted = np.clip((seen[before:] - mean) / deviation, -10, 10)
        found = np.stack([worker._seen(t) for t in range(3)])
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)
        totals, rewards = discounted(mine, now)
        _, deviation = statistics(totals[:before].reshape(-1, 1))
        np.testing.assert_allclose(worker.roll.rewards, np.clip(rewards[before:] / deviation, -10, 10), rtol=1e-6)
    plan.unpack(theta, policy)
    assert policy.seen[0].item() == pytest.approx(18 * envs + 1e-4)
    everything = acted_on(mine, 18).reshape(-1, 3).astype(np.float64)
    mean, deviation = statistics(everything)
    # Kept in single precision, of numbers that are up to six deviations from 0.
    found = normalized(torch.from_numpy(everything), policy.seen.double()).numpy()
    np.testing.assert_allclose(found, np.clip((everything - mean) / deviation, -10, 10), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.thorough
def test_threads_share_what_they_met(far, threads):
    model = HSA2C("MlpPolicy", far, threads=threads, envs_per_thread=2, **BOTH, seed=0).learn(2400)
    # Without a lock, what two write at once may be lost; alone, nothing is.
    least = 0.9 if threads > 1 else 1
    for statistics in (model.policy.seen, model.policy.rewarded):
        assert least * model.num_timesteps <= statistics[0] <= model.num_timesteps + 1
    mean = (model.policy.seen[1:4] / model.policy.seen[0]).numpy()
    np.testing.assert_allclose(mean, [5.0, -40.0, 0.0], atol=1.5)
    model.close()


def test_playing_changes_nothing_and_a_file_keeps_it(far, tmp_path):
    model = HSA2C("MlpPolicy", far, **BOTH, seed=0).learn(400)
    kept = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.evaluate(3, seed=1)
    rows = np.random.default_rng(0).normal(0, 50, (20, 3)).astype(np.float32)
    said, _ = model.predict(rows, deterministic=True)
    assert all(torch.equal(value, kept[name]) for name, value in model.policy.state_dict().items())
    # As the module itself says.
    assert (said == model.policy(torch.from_numpy(rows))[0].argmax(-1).numpy()).all()
    again = HSA2C.load(model.save(tmp_path / "model"), far)
    assert torch.equal(again.policy.seen, kept["seen"])
    assert torch.equal(again.policy.rewarded, kept["rewarded"])
    assert (again.predict(rows, deterministic=True)[0] == said).all()
    again.learn(400, reset_num_timesteps=False)
    assert again.policy.seen[0].item() == pytest.approx(800)
    for each in (model, again):
        each.close()


@pytest.mark.slow
def test_the_compiled_environments_are_normalized_as_those_of_python(far):
    model = HSA2C("MlpPolicy", "Pendulum-v1", **BOTH, seed=0).learn(4000)
    count, (total, squares) = model.policy.seen[0], model.policy.seen[1:].view(2, 3)
    assert count.item() == pytest.approx(4000)
    # Cosine and sine of an angle: their squares are 1 together.
    assert (squares[:2].sum() / count).item() == pytest.approx(1, abs=2e-3)
    assert total[0].abs() <= count
    same = model.evaluate(3, seed=4)
    assert same.returns == model.evaluate(3, seed=4).returns
    model.close()


def test_a_step_that_only_begins_an_episode_brings_no_reward():
    def two():
        return gymnasium.make_vec("Pendulum-v1", num_envs=2)

    model = HSA2C("MlpPolicy", two, **BOTH, n_steps=5, seed=0).learn(2 * 405)
    # Episodes of 200 steps: two of each copy's 405 steps only began the next.
    assert model.policy.rewarded[0].item() == pytest.approx(2 * 403)
    model.close()


@pytest.mark.thorough
def test_machines_share_what_they_met():
    model = HSA2C("MlpPolicy", "Pendulum-v1", **BOTH, seed=0)
    learn_on_nodes(model, 40_000, nodes=2)
    # All that both met: sums are added, as changes are. Each may have begun a burst more than was asked for.
    burst = 25 * 40
    for statistics in (model.policy.seen, model.policy.rewarded):
        assert model.num_timesteps - 1 <= statistics[0] <= model.num_timesteps + 2 * burst + 1
    model.close()


def test_who_cannot_normalize_says_so(far):
    with pytest.raises(ValueError, match=r"HSA2C\.normalize_observations is for MlpPolicy, got A3CPolicy"):
        HSA2C("A3CPolicy", "ALE/Pong-v5", normalize_observations=True)
    with pytest.raises(ValueError, match=r"HSA2C\.normalize_rewards is for MlpPolicy, got Linear"):
        HSA2C(torch.nn.Linear(3, 2), far, normalize_rewards=True)
    with pytest.raises(ValueError, match=r"HSA2C\.normalize_rewards is for compiled policies, which activations other"):
        HSA2C("MlpPolicy", "Pendulum-v1", policy_kwargs={"activation_fn": torch.nn.ReLU}, normalize_rewards=True)
    policy = MlpPolicy(3, 1, discrete=False, normalize_observations=True)
    with pytest.raises(ValueError, match="must not normalize"):
        ActorCritic(env="Pendulum-v1", policy=policy)
