"""The passes of acting are those of learning: nothing is computed twice.

``keep`` is a forward pass of one step whose results are for acting; ``outputs`` are those of all kept steps together,
to write a loss of; ``backward`` brings its gradient to the parameters.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from flockstep.rl.nets.recorded import Recorded
from flockstep.rl.policies.networks import ActorCritic, Choice, ask


class Passes(Protocol):
    """Forward passes of a roll-out."""

    stays: bool
    """Whether what is kept lies at the same place in every roll-out, so that what reads it can be recorded."""

    def keep(self, observations: Tensor) -> tuple[Choice, Tensor]:
        """One step: what to draw actions from, and the values, without a graph."""
        ...

    def values(self, observations: Tensor) -> Tensor:
        """What states are worth; nothing is kept."""
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
    if type(policy) is not ActorCritic or not all(type(layer) in _KNOWN for layer in policy.trunk):
        return GraphPasses(policy)
    on_a_gpu = next(policy.parameters()).device.type == "cuda"
    return RecordedPasses(policy) if on_a_gpu else LayerPasses(policy)


class GraphPasses:
    """Any module: torch keeps a graph of every step, and goes back through each."""

    stays = False

    def __init__(self, policy: nn.Module) -> None:
        self._policy = policy
        self._kept: list[tuple[Choice, Tensor]] = []

    def keep(self, observations: Tensor) -> tuple[Choice, Tensor]:
        """See Passes."""
        choice, values = ask(self._policy, observations)
        self._kept.append((choice, values))
        return _detached(choice), values.detach()

    @torch.no_grad()
    def values(self, observations: Tensor) -> Tensor:
        """See Passes."""
        return ask(self._policy, observations)[1]

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

    stays = False

    def __init__(self, policy: ActorCritic) -> None:
        self._policy, self._layers = policy, list(policy.trunk)
        self._kept: list[list[Tensor]] = []
        self._features = torch.empty(0)

    def keep(self, observations: Tensor) -> tuple[Choice, Tensor]:
        """See Passes."""
        between = self._through(observations)
        self._kept.append(between)
        with torch.no_grad():
            choice, values = self._policy.judge(between[-1])
        return _detached(choice), values

    @torch.no_grad()
    def values(self, observations: Tensor) -> Tensor:
        """See Passes."""
        return ask(self._policy, observations)[1]

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

    @torch.no_grad()
    def _through(self, observations: Tensor) -> list[Tensor]:
        """What each layer gives, beginning with what the first takes."""
        between = [self._policy.see(observations)]
        for layer in self._layers:
            between.append(layer(between[-1]))
        return between

    def _between(self, i: int) -> Tensor:
        """What went into layer i, of all steps."""
        return torch.cat([between[i] for between in self._kept])


class RecordedPasses(LayerPasses):
    """The same on a GPU, the passes of each step of a roll-out on a tape of its own."""

    stays = True

    def __init__(self, policy: ActorCritic) -> None:
        super().__init__(policy)
        self._tapes: list[Recorded] = []
        self._worth = Recorded(lambda observations: (super(RecordedPasses, self).values(observations),))

    @torch.no_grad()
    def keep(self, observations: Tensor) -> tuple[Choice, Tensor]:
        """See Passes."""
        step = len(self._kept)
        if step == len(self._tapes):
            self._tapes.append(Recorded(self._pass))
        *between, scores, values = self._tapes[step](observations)
        self._kept.append(between)
        log_std = self._policy.log_std
        return scores if log_std is None else (scores, log_std.detach()), values

    def values(self, observations: Tensor) -> Tensor:
        """See Passes."""
        worth: Tensor = self._worth(observations)[0]
        return worth

    def _pass(self, observations: Tensor) -> tuple[Tensor, ...]:
        between = self._through(observations)
        choice, values = self._policy.judge(between[-1])
        return *between, choice if isinstance(choice, Tensor) else choice[0], values


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
