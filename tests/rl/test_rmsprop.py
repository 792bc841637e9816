"""RMSprop in TensorFlow's form against NumPy, as torch optimizer and compiled."""

import numpy as np
import pytest
import torch

from flockstep.optimizers import works_by_coordinate
from flockstep.rl.compiled.update import Own, Weights, clip, descend
from flockstep.rl.rmsprop import RMSpropTF


def oracle(x, gradients, rate, decay, eps):
    square = np.ones_like(x)
    for g in gradients:
        square = decay * square + (1 - decay) * g**2
        x = x - rate * g / np.sqrt(square + eps)
    return x, square


@pytest.mark.parametrize("size", [1, 2, 7])
def test_steps_are_numpys(size):
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal(size), rng.standard_normal((6, size)) * 1e-3
    expected, squares = oracle(start, gradients, 0.1, 0.9, 1e-5)

    x = torch.tensor(start, requires_grad=True)
    optimizer = RMSpropTF([x], lr=0.1, decay=0.9, eps=1e-5)
    for g in gradients:
        x.grad = torch.from_numpy(g.copy())
        optimizer.step()
    np.testing.assert_allclose(x.detach().numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(optimizer.square_avg(x).numpy(), squares, rtol=1e-12)

    theta, square, own = start.copy(), np.ones(size), Own(np.zeros(size), np.zeros(size), np.zeros(1))
    for g in gradients:
        own.g[:] = g
        descend(theta, square, own, 0.1, Weights(0.99, 0.5, 0.0, 1.0, 0.0, 0.5, 0.9, 1e-5))
    np.testing.assert_allclose(theta, expected, rtol=1e-12)
    np.testing.assert_array_equal(own.theta, theta)
    np.testing.assert_allclose(square, squares, rtol=1e-12)


def test_the_first_step_is_short():
    x = torch.zeros(1, requires_grad=True)
    optimizer = RMSpropTF([x], lr=1.0)
    x.grad = torch.tensor([0.01])
    optimizer.step()
    assert x.item() == pytest.approx(-0.01 / np.sqrt(0.99 + 0.01 * 1e-4 + 1e-5), rel=1e-6)


def test_it_is_an_ordinary_optimizer():
    x, still = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optimizer = RMSpropTF([x, still])
    assert works_by_coordinate(optimizer)

    def closure():
        optimizer.zero_grad()
        loss = x.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0  # type: ignore[attr-defined]
    assert torch.equal(still, torch.ones(2))
    twin = RMSpropTF([x, still])
    twin.load_state_dict(optimizer.state_dict())
    assert torch.equal(twin.square_avg(x), optimizer.square_avg(x))
    for bad in ({"lr": -1.0}, {"decay": 1.5}, {"eps": 0.0}):
        with pytest.raises(ValueError, match=r"RMSpropTF\."):
            RMSpropTF([x], **bad)


@pytest.mark.parametrize("scale", [0.01, 10.0])
def test_a_gradient_is_clipped_as_torch_clips(scale):
    g = np.random.default_rng(0).standard_normal(11) * scale
    x = torch.zeros(11, dtype=torch.float64, requires_grad=True)
    x.grad = torch.from_numpy(g.copy())
    torch.nn.utils.clip_grad_norm_([x], 0.5)
    clip(g, 0.5)
    np.testing.assert_allclose(g, x.grad.numpy(), rtol=1e-12)
