"""The compiled gradient against autograd of the written loss, in float64; and the loss itself in float32."""

import numpy as np
import pytest
import torch

from flockstep.rl import losses
from flockstep.rl.compiled.compiled_rollout import act, values_beyond
from flockstep.rl.compiled.compiled_worker import own_arrays, rollout_arrays, weights_of
from flockstep.rl.compiled.layout import Plan
from flockstep.rl.compiled.network import block
from flockstep.rl.compiled.update import gradient
from flockstep.rl.policies.mlp import MlpPolicy
from flockstep.rl.returns import n_step_returns
from flockstep.rl.settings import Settings

# They compile fifty functions: half a minute of a core, before any test has begun.
pytestmark = pytest.mark.slow

INPUTS, OUTPUTS = 3, 2
SHAPES = [
    {"actor": (9, 6), "critic": (9, 6)},
    {"actor": (5,), "critic": ()},
    {"actor": (), "critic": (), "shared": (7, 10)},
    {"actor": (4,), "critic": (3, 3), "shared": (8,)},
]


def record(policy, settings, dtype, rng):
    """A roll-out of random observations, rewards and ends, with actions that the policy draws."""
    plan = Plan.of(policy)
    roll = rollout_arrays(plan, settings, 1 if policy.discrete else OUTPUTS, dtype)
    own = own_arrays(plan, dtype)
    plan.pack(policy, own.theta)
    steps, envs = roll.rewards.shape
    seen = block(roll.acts, (steps + 1) * envs, 0, INPUTS)
    seen[:] = rng.standard_normal(seen.shape)
    for t in range(steps):
        act(own.theta, plan.net, roll, t, rng)
    values_beyond(own.theta, plan.net, roll, 0, envs)
    roll.rewards[:] = rng.standard_normal((steps, envs))
    roll.ends[:] = rng.choice(3, p=(0.6, 0.2, 0.2), size=(steps, envs))
    roll.final_values[:] = rng.standard_normal((steps, envs))
    roll.counts[:] = rng.random((steps, envs)) < 0.8
    return plan, roll, own, seen


def written_loss(policy, settings, roll, seen):
    """The loss of the same roll-out, in torch."""
    steps, envs = roll.rewards.shape
    said, values = policy(torch.from_numpy(seen.copy()))
    worth = values.detach().numpy()
    returns = n_step_returns(
        roll.rewards,
        roll.ends == 1,
        roll.ends == 2,
        roll.final_values,
        worth[-envs:],
        settings.gamma,
        values=worth[:-envs].reshape(steps, envs),
        gae_lambda=settings.gae_lambda,
    )
    said, values = said[:-envs], values[:-envs]
    actions = torch.from_numpy(roll.actions).reshape(steps * envs, -1)
    if policy.discrete:
        log_prob, entropy = losses.categorical(said, actions[:, 0])
    else:
        log_prob, entropy = losses.gaussian(said, policy.log_std, actions)
    return losses.actor_critic(
        log_prob,
        entropy,
        values,
        torch.from_numpy(returns).ravel(),
        vf_coef=settings.vf_coef,
        ent_coef=settings.ent_coef,
        counts=torch.from_numpy(roll.counts).ravel(),
        normalize_advantage=settings.normalize_advantage,
    )


def policy_with(widths, discrete, dtype):
    torch.manual_seed(1)
    policy = MlpPolicy(INPUTS, OUTPUTS, discrete=discrete, **widths).to(dtype)
    with torch.no_grad():
        # From scratch all logits are nearly equal and all biases 0, which would hide mistakes.
        for p in policy.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return policy


@pytest.mark.parametrize("widths", SHAPES)
@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize(("steps", "envs"), [(1, 1), (2, 5), (5, 2), (3, 3)])
@pytest.mark.parametrize("advantages", [{}, {"gae_lambda": 0.8, "normalize_advantage": True}], ids=["plain", "GAE"])
@pytest.mark.cases(check=24)
def test_the_gradient_is_autograds(widths, discrete, steps, envs, advantages):
    settings = Settings(n_steps=steps, envs_per_thread=envs, ent_coef=0.05, vf_coef=0.7, gamma=0.9, **advantages)
    policy = policy_with(widths, discrete, torch.float64)
    plan, roll, own, seen = record(policy, settings, np.float64, np.random.default_rng(0))
    sums = np.zeros(4)
    gradient(plan.net, roll, own, weights_of(settings), sums)

    loss = written_loss(policy, settings, roll, seen)
    expected = torch.autograd.grad(loss.total, list(policy.parameters()), materialize_grads=True)
    found = policy_with(widths, discrete, torch.float64)
    plan.unpack(own.g, found)
    for (name, part), slope in zip(found.named_parameters(), expected, strict=True):
        torch.testing.assert_close(part.detach(), slope, rtol=1e-6, atol=1e-9, msg=name)
    np.testing.assert_allclose(
        sums[:3], [loss.policy.item(), loss.value.item(), loss.entropy.item()], rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("discrete", [True, False])
def test_the_losses_of_a_recorded_rollout_are_torchs(discrete):
    settings = Settings(n_steps=5, envs_per_thread=8, ent_coef=0.01)
    policy = policy_with({}, discrete, torch.float32)
    plan, roll, own, seen = record(policy, settings, np.float32, np.random.default_rng(0))
    sums = np.zeros(4)
    gradient(plan.net, roll, own, weights_of(settings), sums)
    loss = written_loss(policy, settings, roll, seen)
    np.testing.assert_allclose(sums[:3], [loss.policy.item(), loss.value.item(), loss.entropy.item()], rtol=1e-5)
    total = sums[0] + settings.vf_coef * sums[1] - settings.ent_coef * sums[2]
    assert total == pytest.approx(loss.total.item(), rel=1e-5)


def test_tanh_in_single_precision_is_within_roundings():
    from flockstep.rl.compiled.kernels import tanh_all

    x = np.linspace(-12, 12, 100_001, dtype=np.float32).reshape(-1, 1)
    y = x.copy()
    tanh_all(y)
    np.testing.assert_allclose(y, np.tanh(x.astype(np.float64)), atol=4e-7)


def test_what_is_packed_comes_back():
    policy = policy_with(SHAPES[3], False, torch.float32)
    plan = Plan.of(policy)
    vector = np.zeros(plan.size, np.float32)
    plan.pack(policy, vector)
    other = MlpPolicy(INPUTS, OUTPUTS, discrete=False, **SHAPES[3])
    plan.unpack(vector, other)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), other.parameters(), strict=True))
