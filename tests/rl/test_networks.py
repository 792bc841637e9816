"""Policies: shapes, how they begin, and CnnPolicy and MlpPolicy against the ones they are named after."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from flockstep.rl.environments.spaces import Actions, Observations
from flockstep.rl.policies.networks import POLICIES, Images, ask

SCREENS = Observations((4, 84, 84), dtype="uint8")
CHOICES, NUMBERS = Actions(True, 6), Actions(False, 2, (2,), low=(-1.0, -1.0), high=(1.0, 1.0))


def screens(count, shape=(4, 84, 84)):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("name", ["CnnPolicy", "A3CPolicy"])
@pytest.mark.cases(check=2)
def test_image_policies_give_logits_and_values(name, count):
    choice, values = ask(POLICIES[name](SCREENS, CHOICES), screens(count))
    assert choice.shape == (count, 6)
    assert values.shape == (count,)


@pytest.mark.slow
def test_how_many_numbers_they_have():
    def numbers(name):
        return sum(p.numel() for p in POLICIES[name](SCREENS, CHOICES).parameters())

    nature = 32 * (4 * 64 + 1) + 64 * (32 * 16 + 1) + 64 * (64 * 9 + 1) + 512 * (64 * 7 * 7 + 1) + 7 * 513
    a3c = 16 * (4 * 64 + 1) + 32 * (16 * 16 + 1) + 256 * (32 * 9 * 9 + 1) + 7 * 257
    assert numbers("CnnPolicy") == nature
    assert numbers("A3CPolicy") == a3c


def test_they_begin_orthogonal():
    policy = POLICIES["A3CPolicy"](SCREENS, CHOICES)
    for layer, gain in ((policy.trunk[0], math.sqrt(2)), (policy.actor, 0.01), (policy.critic, 1.0)):
        rows = layer.weight.detach().flatten(1).double()
        torch.testing.assert_close(rows @ rows.T, gain**2 * torch.eye(len(rows)).double(), atol=1e-5, rtol=0)
        assert not layer.bias.any()


def test_channels_may_come_first_or_last():
    first, last = Images((3, 40, 36)), Images((40, 36, 3))
    frames = screens(2, (3, 40, 36))
    seen = first(frames)
    torch.testing.assert_close(seen, frames / 255)
    assert torch.equal(seen, last(frames.permute(0, 2, 3, 1)))
    assert seen.is_contiguous(memory_format=torch.channels_last)


def test_numbers_are_left_as_they_are():
    frames = torch.rand(2, 3, 40, 36)
    before = frames.clone()
    assert torch.equal(Images((3, 40, 36))(frames), before)
    assert torch.equal(frames, before)


def test_continuous_actions_have_a_spread():
    for name, observations, seen in (
        ("A3CPolicy", SCREENS, screens(3)),
        ("MlpPolicy", Observations((5,)), torch.zeros(3, 5)),
    ):
        (mean, log_std), values = ask(POLICIES[name](observations, NUMBERS), seen)
        assert mean.shape == (3, 2)
        assert values.shape == (3,)
        assert not log_std.any()


def test_images_that_are_none_or_too_small():
    with pytest.raises(ValueError, match="height, a width and channels"):
        POLICIES["CnnPolicy"](Observations((84, 84)), CHOICES)
    with pytest.raises(ValueError, match="too small"):
        POLICIES["CnnPolicy"](Observations((3, 20, 20)), CHOICES)


def copied(theirs, ours):
    """Weights of stable-baselines3's policy into ours, in the order in which a reader of both meets them."""
    layers = [m for m in theirs.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    own = [m for m in ours.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [tuple(m.weight.shape) for m in layers] == [tuple(m.weight.shape) for m in own]
    for a, b in zip(layers, own, strict=True):
        b.load_state_dict(a.state_dict())


@pytest.mark.parametrize("name", ["CnnPolicy", "MlpPolicy"])
def test_the_same_network_as_stable_baselines3(name):
    policies = pytest.importorskip("stable_baselines3.common.policies")
    from gymnasium.spaces import Box, Discrete

    if name == "CnnPolicy":
        kind, space, seen = policies.ActorCriticCnnPolicy, Box(0, 255, (4, 84, 84), np.uint8), screens(3)
    else:
        kind, space, seen = policies.ActorCriticPolicy, Box(-1.0, 1.0, (7,)), torch.randn(3, 7)
    theirs = kind(space, Discrete(6), lambda _: 7e-4)
    ours = POLICIES[name](Observations.of(space), CHOICES)
    copied(theirs, ours)
    with torch.no_grad():
        logits, values = ask(ours, seen)
        torch.testing.assert_close(
            torch.log_softmax(logits, 1), theirs.get_distribution(seen).distribution.logits, atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(values, theirs.predict_values(seen)[:, 0], atol=1e-5, rtol=1e-5)
