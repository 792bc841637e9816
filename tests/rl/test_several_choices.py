"""Actions of several choices at once: how likely they are, how often they are drawn, and that they are learned."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium", reason="needs gymnasium")

from gymnasium.spaces import MultiBinary, MultiDiscrete
from patterns import Patterns

from flockstep.rl import HSA2C
from flockstep.rl.compiled.compiled_engine import CompiledEngine
from flockstep.rl.environments.spaces import Actions
from flockstep.rl.losses import each_part
from flockstep.rl.nets.action_draws import draw, likeliest, log_prob_and_entropy
from flockstep.rl.nets.torch_engine import TorchEngine
from flockstep.rl.nodes.learn_nodes import learn_on_nodes
from flockstep.rl.policies.mlp import MlpPolicy

PARTS = [(3,), (2, 2), (3, 2, 4), (1, 5), (2,) * 5]
SPACES = [
    MultiDiscrete([4]),
    MultiDiscrete([3, 2, 4], start=[5, -1, 0]),
    MultiDiscrete(np.array([[2, 3], [4, 1], [2, 2]]), dtype=np.int32, start=np.array([[1, 2], [3, 4], [-5, 0]])),
    MultiBinary(1),
    MultiBinary(3),
    MultiBinary((2, 3)),
]


def logits_of(parts, rows=4, spread=2.0):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(rows, sum(parts))) * spread)


def chances_of_all(logits, parts):
    """Every action there is, and its chance: the product of what its parts have, of one row of logits."""
    starts = np.cumsum([0, *parts])
    actions = list(itertools.product(*map(range, parts)))
    chances = []
    for action in actions:
        chance = 1.0
        for start, count, chosen in zip(starts, parts, action, strict=False):
            weights = np.exp(logits[start : start + count])
            chance *= weights[chosen] / weights.sum()
        chances.append(chance)
    return actions, np.array(chances)


@pytest.mark.parametrize("parts", PARTS)
def test_likelihood_and_entropy_are_those_of_the_joint_distribution(parts):
    logits = logits_of(parts)
    for row in logits:
        actions, chances = chances_of_all(row.numpy(), parts)
        assert chances.sum() == pytest.approx(1)
        log_prob, entropy = log_prob_and_entropy(row.expand(len(actions), -1), torch.tensor(actions), parts)
        np.testing.assert_allclose(log_prob.numpy(), np.log(chances), rtol=1e-12)
        np.testing.assert_allclose(entropy.numpy(), -(chances * np.log(chances)).sum(), rtol=1e-12)
        best = likeliest(row[None], parts)
        assert tuple(best[0].tolist()) == actions[chances.argmax()]


@pytest.mark.parametrize("parts", PARTS)
def test_actions_are_drawn_as_often_as_they_are_likely(parts):
    logits, count = logits_of(parts, rows=1, spread=0.7), 20_000
    actions, chances = chances_of_all(logits[0].numpy(), parts)
    drawn = draw(logits.expand(count, -1), torch.Generator().manual_seed(1), parts)
    assert drawn.shape == (count, len(parts))
    met = dict.fromkeys(actions, 0)
    for action in drawn.tolist():
        met[tuple(action)] += 1
    distance = float(((np.array(list(met.values())) - count * chances) ** 2 / (count * chances)).sum())
    # What one in a thousand would exceed by chance, by the approximation of Wilson and Hilferty.
    free = len(actions) - 1
    assert distance < free * (1 - 2 / (9 * free) + 3.09 * np.sqrt(2 / (9 * free))) ** 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1.0, 1e3])
def test_what_fills_a_short_part_is_never_chosen_and_has_no_weight(dtype, size):
    parts = (1, 6, 2)
    logits = (logits_of(parts, rows=300) * size).to(dtype).requires_grad_()
    drawn = draw(logits.detach(), torch.Generator().manual_seed(0), parts)
    best = likeliest(logits.detach(), parts)
    for chosen in (drawn, best):
        assert (chosen < torch.tensor(parts)).all()
    log_prob, entropy = log_prob_and_entropy(logits, best, parts)
    (log_prob + entropy).sum().backward()
    for found in (log_prob, entropy, logits.grad):
        assert found.isfinite().all()
    # The only choice of a part is certain, whatever its logit.
    assert (logits.grad[:, 0] == 0).all()


def test_a_policy_of_another_size_is_told():
    with pytest.raises(ValueError, match=r"HSA2C.policy must give 5 logits for parts of 3, 2 choices, got 4"):
        each_part(torch.zeros(2, 4), (3, 2))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_are_given_as_the_space_has_them(space):
    actions = Actions.of(space)
    low = np.ravel(space.start if isinstance(space, MultiDiscrete) else 0)
    for count in (1, 2, 7):
        drawn = np.random.default_rng(count).integers(0, actions.parts, (count, len(actions.parts)))
        given = actions.decode(drawn)
        assert given.dtype == space.dtype
        assert all(space.contains(one) for one in given)
        assert (given.reshape(count, -1) - low == drawn).all()


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.slow
def test_as_a_user_has_it(space, tmp_path):
    make = partial(Patterns, space)
    model = HSA2C("MlpPolicy", make, envs_per_thread=3, period=5, seed=0)
    assert isinstance(model.policy, MlpPolicy)
    assert model.action_space == space
    before = torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach().clone()
    model.learn(150)
    assert isinstance(model._engine, TorchEngine)
    assert model.num_timesteps == 150
    assert model.history[-1].episodes > 0
    assert not torch.equal(torch.nn.utils.parameters_to_vector(model.policy.parameters()), before)
    env = make()
    seen, _ = env.reset(seed=0)
    for deterministic in (False, True):
        assert space.contains(model.predict(seen, deterministic=deterministic)[0])
    many, _ = model.predict(np.stack([seen] * 5))
    assert many.shape == (5, *space.shape)
    found = model.evaluate(3, seed=1)
    assert found.lengths == (8, 8, 8)
    twin = HSA2C.load(model.save(tmp_path / "several"), make)
    assert twin.evaluate(3, seed=1) == found
    twin.learn(50, reset_num_timesteps=False)
    assert twin.num_timesteps == 210
    for each in (model, twin):
        each.close()


def test_one_seed_has_one_outcome():
    found = []
    for _ in range(2):
        model = HSA2C("MlpPolicy", partial(Patterns, MultiDiscrete([3, 2])), envs_per_thread=2, seed=3).learn(100)
        found.append(torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach())
        model.close()
    assert torch.equal(*found)


def test_one_choice_stays_compiled():
    model = HSA2C("MlpPolicy", "CartPole-v1", seed=0)
    assert model.actions.parts == ()
    assert isinstance(model._ready(), CompiledEngine)
    model.close()


def test_a_network_begins_as_any_mlp_policy():
    """Two layers of 64 for each, orthogonal: rows of the last are 0.01 long, the critic's 1."""
    model = HSA2C("MlpPolicy", partial(Patterns, MultiDiscrete([3, 2])), seed=0)
    assert model.policy.widths == {"actor": (64, 64), "critic": (64, 64), "shared": ()}
    weight = model.policy.action_net.weight.detach()
    torch.testing.assert_close(weight @ weight.T, 1e-4 * torch.eye(5), rtol=1e-4, atol=1e-8)
    assert model.policy.value_net.weight.norm().item() == pytest.approx(1, rel=1e-5)
    model.close()


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("space", [MultiDiscrete([3, 2, 4], start=[5, -1, 0]), MultiBinary((2, 2))], ids=str)
@pytest.mark.thorough
def test_a_pattern_is_learned(space):
    # What is shown next has nothing to do with what was done.
    model = HSA2C("MlpPolicy", partial(Patterns, space), learning_rate=3e-3, gamma=0.0, seed=0)
    parts = len(model.actions.parts)
    blind = model.evaluate(50, deterministic=False, seed=0).mean
    model.learn(40_000, lambda row: row.episodes < 100 or row.mean_return < 8 * parts * 0.8)
    assert model.num_timesteps < 40_000
    assert blind < 8 * parts * 0.6
    # Drawn, actions still err now and then; the likeliest should not.
    assert model.evaluate(50, seed=0).mean >= 8 * parts * 0.95
    model.close()


@pytest.mark.slow
def test_two_processes_write_one_policy():
    model = HSA2C("MlpPolicy", partial(Patterns, MultiBinary(3)), threads=2, envs_per_thread=3, seed=0)
    model.learn(600)
    assert model.num_timesteps >= 600
    assert model.history[-1].episodes > 0
    assert len(model.evaluate(3).returns) == 3
    model.close()


def test_nodes_do_not_know_them():
    model = HSA2C("MlpPolicy", partial(Patterns, MultiBinary(3)), seed=0)
    with pytest.raises(ValueError, match=r"env must have Discrete or Box actions, got MultiBinary\(3\)"):
        learn_on_nodes(model, 1000, nodes=2)
    model.close()
