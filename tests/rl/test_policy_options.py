"""``policy_kwargs``: activations, beginnings and spreads, and what of them survives a file."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from flockstep.rl import HSA2C, MlpPolicy
from flockstep.rl.compiled.compiled_engine import CompiledEngine
from flockstep.rl.environments.spaces import Actions, Observations
from flockstep.rl.nets.torch_engine import TorchEngine
from flockstep.rl.policies.networks import POLICIES
from flockstep.rl.policies.policy_options import arguments_of

gymnasium = pytest.importorskip("gymnasium", reason="needs gymnasium")

SCREENS = Observations((3, 36, 36), dtype="uint8")
CHOICES, NUMBERS = Actions(True, 6), Actions(False, 2, (2,), low=(-1.0, -1.0), high=(1.0, 1.0))


def model_with(env="CartPole-v1", **options):
    return HSA2C("MlpPolicy", env, policy_kwargs={"net_arch": [8], **options}, envs_per_thread=2, seed=0)


def parameters(model):
    return torch.cat([p.detach().ravel() for p in model.policy.parameters()])


def is_orthogonal(layer, gain):
    rows = layer.weight.detach().flatten(1).double()
    rows = rows if rows.shape[0] <= rows.shape[1] else rows.T
    return torch.allclose(rows @ rows.T, gain**2 * torch.eye(len(rows)).double(), atol=1e-5)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize(
    ("activation", "function"),
    [(nn.ReLU, torch.relu), (nn.ELU, nn.functional.elu), (nn.Tanh, torch.tanh)],
    ids=["ReLU", "ELU", "Tanh"],
)
@pytest.mark.slow
def test_an_activation_is_used_trained_and_kept_in_files(activation, function, env, tmp_path):
    model = model_with(env, activation_fn=activation)
    assert isinstance(model._ready(), CompiledEngine if activation is nn.Tanh else TorchEngine)
    before = parameters(model)
    model.learn(200)
    assert model.num_timesteps == 200
    assert not torch.equal(parameters(model), before)
    seen = torch.randn(5, model.observations.size)
    with torch.no_grad():
        layer, out = model.policy.actor[0], model.policy.action_net
        wanted = function(seen @ layer.weight.T + layer.bias) @ out.weight.T + out.bias
        torch.testing.assert_close(model.policy(seen)[0], wanted)
    twin = HSA2C.load(model.save(tmp_path / "m"))
    assert twin.policy.activation is activation
    assert torch.equal(parameters(twin), parameters(model))
    torch.testing.assert_close(twin.policy(seen)[0], model.policy(seen)[0])
    assert twin.evaluate(1, seed=3) == model.evaluate(1, seed=3)
    for one in (model, twin):
        one.learn(100, reset_num_timesteps=False)
        one.close()


def test_the_name_of_an_activation_will_do():
    assert model_with(activation_fn="ReLU").policy.activation is nn.ReLU


@pytest.mark.slow
def test_one_seed_has_one_outcome_with_any_activation():
    first, second = (model_with(activation_fn=nn.ReLU).learn(300) for _ in range(2))
    assert torch.equal(parameters(first), parameters(second))


def test_weights_begin_as_asked():
    usual, plain = model_with().policy, model_with(ortho_init=False).policy
    for layer, gain in ((usual.actor[0], math.sqrt(2)), (usual.action_net, 0.01), (usual.value_net, 1.0)):
        assert is_orthogonal(layer, gain)
        assert not layer.bias.any()
    for layer, gain in ((plain.actor[0], math.sqrt(2)), (plain.action_net, 0.01), (plain.value_net, 1.0)):
        assert not is_orthogonal(layer, gain)
        assert layer.bias.any()
        # Torch's own beginning: within the root of the number of inputs.
        assert layer.weight.abs().max() <= 1 / math.sqrt(layer.in_features)


@pytest.mark.parametrize("name", ["CnnPolicy", "A3CPolicy"])
def test_networks_for_images_begin_as_asked(name):
    torch.manual_seed(0)
    plain = POLICIES[name](SCREENS, NUMBERS, **arguments_of(name, {"ortho_init": False, "log_std_init": -1.5}))
    assert plain.log_std.tolist() == [-1.5, -1.5]
    assert not is_orthogonal(plain.actor, 0.01)
    assert plain.actor.bias.any()
    usual = POLICIES[name](SCREENS, NUMBERS, **arguments_of(name, {}))
    assert usual.log_std.tolist() == [0.0, 0.0]
    assert is_orthogonal(usual.actor, 0.01)
    # Nothing to be asked of choices, as in stable-baselines3.
    assert POLICIES[name](SCREENS, CHOICES, **arguments_of(name, {"log_std_init": -1.5})).log_std is None


@pytest.mark.parametrize("name", ["CnnPolicy", "A3CPolicy"])
def test_of_networks_for_images_the_rest_is_fixed(name):
    with pytest.raises(ValueError, match=f"of {name} may have ortho_init, log_std_init, got activation_fn, net_arch"):
        arguments_of(name, {"net_arch": [4], "activation_fn": "ReLU", "ortho_init": True})


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_actions_spread_as_asked(activation, tmp_path):
    model = model_with("Pendulum-v1", log_std_init=-5.0, activation_fn=activation)
    assert model.policy.log_std.tolist() == [-5.0]
    seen = np.zeros((200, 3), np.float32)
    with torch.no_grad():
        mean = model.policy(torch.from_numpy(seen))[0].numpy()
    drawn, _ = model.predict(seen)
    assert np.abs(drawn - mean).max() < 6 * math.exp(-5.0)
    assert drawn.std() > 0.5 * math.exp(-5.0)
    twin = HSA2C.load(model.save(tmp_path / "m"))
    assert twin._options == model._options


def test_a_network_of_ones_own_making_is_asked_for_again(tmp_path):
    """Even of a class that is known: its name does not say what it was made with."""

    def made():
        torch.manual_seed(0)
        return MlpPolicy(4, 2, discrete=True, actor=(8,), critic=(8,), activation=nn.ReLU)

    path = HSA2C(made(), "CartPole-v1", envs_per_thread=2, seed=0).learn(50).save(tmp_path / "m")
    with pytest.raises(ValueError, match=r"HSA2C.policy must be given again: .* MlpPolicy"):
        HSA2C.load(path)
    assert HSA2C.load(path, policy=made()).num_timesteps == 50


def test_what_is_compiled_takes_tanh_alone():
    from flockstep.rl.nodes.learn_nodes import learn_on_nodes

    with pytest.raises(ValueError, match="those with Tanh are compiled, got ReLU"):
        learn_on_nodes(model_with(activation_fn=nn.ReLU), 1000, nodes=2)
