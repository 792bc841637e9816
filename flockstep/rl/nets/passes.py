"""The passes of acting are those of learning: nothing is computed twice.

``keep`` is a forward pass of one step whose results are for acting; ``outputs`` are those of all kept steps together,
to write a loss of; ``backward`` brings its gradient to the parameters.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from flockstep.rl.networks import ActorCritic, Choice, ask


class Passes(Protocol):
    """Forward passes of a roll-out."""

    def keep(self, observations: Tensor) -> tuple[Choice, Tensor]:
        """One step: what to draw actions from, and the values, without a graph."""
        ...

    def outputs(self) -> tuple[Choice, Tensor]:
        """Of all steps kept, (steps, environments, ...), with a graph."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Gradients of all parameters."""
        ...

    def forget(self) -> None:
        """Begin anew; what was kept is of no use once parameters have changed."""
        ...


def passes_of(policy: nn.Module) -> Passes:
    """The faster way where the policy's layers are known, the general one otherwise."""
    if type(policy) is ActorCritic and all(type(layer) in _KNOWN for layer in policy.trunk):
        return LayerPasses(policy)
    return GraphPasses(policy)


class GraphPasses:
    """Any module: torch keeps a graph of every step, and goes back through each."""

    def __init__(self, policy: nn.Module) -> None:
        self._policy = policy
        self._kept: list[tuple[Choice, Tensor]] = []

    def keep(self, observations: Tensor) -> tuple[Choice, Tensor]:
        """See Passes."""
        choice, values = ask(self._policy, observations)
        self._kept.append((choice, values))
        return _detached(choice), values.detach()

    def outputs(self) -> tuple[Choice, Tensor]:
        """See Passes."""
        choices, values = zip(*self._kept, strict=True)
        if isinstance(choices[0], Tensor):
            return torch.stack(choices), torch.stack(values)
        means, log_stds = zip(*choices, strict=True)
        rows = [log_std.expand_as(mean) for mean, log_std in zip(means, log_stds, strict=True)]
        return (torch.stack(means), torch.stack(rows)), torch.stack(values)

    def backward(self, loss: Tensor) -> None:
        """See Passes."""
        loss.backward()  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """See Passes."""
        self._kept.clear()


class LayerPasses:
    """A trunk of known layers: what each gave is kept, and one pass goes back through all steps at once.

    Torch's own way would go back step by step: five times through the largest matrix, with a few rows each time.
    """

    def __init__(self, policy: ActorCritic) -> None:
        self._policy, self._layers = policy, list(policy.trunk)
        self._kept: list[list[Tensor]] = []
        self._features = torch.empty(0)

    def keep(self, observations: Tensor) -> tuple[Choice, Tensor]:
        """See Passes."""
        with torch.no_grad():
            between = [self._policy.see(observations)]
            for layer in self._layers:
                between.append(layer(between[-1]))
            self._kept.append(between)
            choice, values = self._policy.judge(between[-1])
        return _detached(choice), values

    def outputs(self) -> tuple[Choice, Tensor]:
        """See Passes."""
        steps = len(self._kept)
        self._features = torch.cat([between[-1] for between in self._kept]).requires_grad_()
        choice, values = self._policy.judge(self._features)
        if isinstance(choice, Tensor):
            return _stepwise(choice, steps), _stepwise(values, steps)
        mean, log_std = choice
        return (_stepwise(mean, steps), log_std), _stepwise(values, steps)

    @torch.no_grad()
    def backward(self, loss: Tensor) -> None:
        """See Passes."""
        with torch.enable_grad():
            loss.backward()  # type: ignore[no-untyped-call]
        gradient = self._features.grad
        if gradient is None:
            raise ValueError("a loss must depend on what the policy gave")
        after = self._features.detach()
        for i in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[i]
            if isinstance(layer, nn.ReLU):
                gradient = torch.ops.aten.threshold_backward(gradient, after, 0)
            elif isinstance(layer, nn.Tanh):
                gradient = torch.ops.aten.tanh_backward(gradient, after)
            elif isinstance(layer, nn.Flatten):
                after = self._between(i)
                gradient = gradient.view(after.shape)
            else:
                after = self._between(i)
                gradient = _parameters_back(layer, after, gradient, further=i > 0)

    def forget(self) -> None:
        """See Passes."""
        self._kept.clear()
        self._features = torch.empty(0)

    def _between(self, i: int) -> Tensor:
        """What went into layer i, of all steps."""
        return torch.cat([between[i] for between in self._kept])


_KNOWN = (nn.Conv2d, nn.Linear, nn.ReLU, nn.Tanh, nn.Flatten)


def _parameters_back(layer: nn.Module, inputs: Tensor, gradient: Tensor, *, further: bool) -> Tensor:
    """The gradient of a layer's parameters, and of its inputs where anybody needs that."""
    if isinstance(layer, nn.Linear):
        layer.weight.grad = gradient.t().mm(inputs)
        if layer.bias is not None:
            layer.bias.grad = gradient.sum(0)
        return gradient.mm(layer.weight) if further else gradient
    if not isinstance(layer, nn.Conv2d):
        raise TypeError(f"no way back through {type(layer).__name__}")
    biased = layer.bias is not None
    back, layer.weight.grad, bias = torch.ops.aten.convolution_backward(
        gradient.contiguous(memory_format=torch.channels_last),
        inputs,
        layer.weight,
        [layer.out_channels] if biased else None,
        layer.stride,
        layer.padding,
        layer.dilation,
        False,
        [0, 0],
        layer.groups,
        [further, True, biased],
    )
    if layer.bias is not None:
        layer.bias.grad = bias
    return back if further else gradient


def _stepwise(rows: Tensor, steps: int) -> Tensor:
    return rows.view(steps, -1, *rows.shape[1:])


def _detached(choice: Choice) -> Choice:
    return choice.detach() if isinstance(choice, Tensor) else (choice[0].detach(), choice[1].detach())
