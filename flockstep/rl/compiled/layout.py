"""Where everything of a network lies: its parameters in one vector, its activations in one block per layer.

What was seen and rewarded lies in the vector as well: so threads and machines share it as they share parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flockstep.rl.policies.mlp import MlpPolicy

_LINE = 16
"""Numbers between whose multiples parts begin: a cache line of float32."""


class Net(NamedTuple):
    """A network, as compiled loops read it."""

    layers: Any
    """(layers, 7): where weights and biases begin, inputs, outputs, where both of these lie, whether it is a head."""
    shared: Any
    actor: Any
    """Layers that both towers share come first, then ``actor`` layers, then the critic's."""
    log_std: Any
    """Where the spread of actions lies, or -1 for discrete ones."""
    outputs: Any
    """How many logits or means."""
    logits: Any
    value: Any
    """Where the two results lie."""
    seen: Any
    """Where the statistics of observations lie, or -1 where they are taken as they are."""
    rewarded: Any
    """The same of rewards."""


@dataclass(frozen=True)
class Plan:
    """The places of one network."""

    net: Net
    size: int
    """Numbers in the vector of parameters, those between aligned parts included."""
    columns: int
    """Numbers per row in a block of activations."""

    @classmethod
    def of(cls, policy: MlpPolicy) -> Plan:
        """Lay out a policy."""
        if policy.activation is not nn.Tanh:
            raise ValueError(
                f"of policies for rows of numbers those with Tanh are compiled, got {policy.activation.__name__}"
            )
        rows: list[list[int]] = []
        parameters, columns = 0, _aligned(policy.inputs)
        start = joint = 0
        counts = []
        for tower in (policy.shared, policy.actor, policy.critic):
            start, before = joint, len(rows)
            for layer, is_head in _layers_of(policy, tower):
                n_in, n_out = layer.in_features, layer.out_features
                biases = parameters + _aligned(n_in * n_out)
                rows.append([parameters, biases, n_in, n_out, start, columns, int(is_head)])
                start, columns, parameters = columns, columns + _aligned(n_out), biases + _aligned(n_out)
            counts.append(len(rows) - before)
            joint = start if tower is policy.shared else joint
        logits = rows[counts[0] + counts[1] - 1]
        log_std = -1 if policy.discrete else parameters
        size = parameters if policy.discrete else parameters + _aligned(logits[3])
        seen = rewarded = -1
        if policy.normalize_observations:
            seen, size = size, size + _aligned(policy.seen.numel())
        if policy.normalize_rewards:
            rewarded, size = size, size + _aligned(policy.rewarded.numel())
        table = np.array(rows, np.int64)
        net = Net(table, counts[0], counts[1], log_std, logits[3], logits[5], rows[-1][5], seen, rewarded)
        return cls(net, size, columns)

    def pack(self, policy: MlpPolicy, out: NDArray[Any]) -> None:
        """A policy's parameters into a vector."""
        for part, tensor in self._places(policy):
            out[part] = tensor.detach().cpu().numpy().ravel()

    def unpack(self, vector: NDArray[Any], policy: MlpPolicy) -> None:
        """The opposite."""
        with torch.no_grad():
            for part, tensor in self._places(policy):
                tensor.copy_(torch.from_numpy(vector[part].copy()).view(tensor.shape))

    def share(self, policy: MlpPolicy, vector: NDArray[Any]) -> None:
        """Let a policy's parameters lie in a vector: what is written to one is seen in the other."""
        self.pack(policy, vector)
        whole = torch.from_numpy(vector)
        for (part, tensor), parameter in zip(self._places(policy), _parameters(policy), strict=True):
            # Hidden layers lie the other way round.
            turned = tensor is not parameter
            view = whole[part].view(tensor.shape)
            parameter.data = view.T if turned else view

    def is_shared(self, policy: MlpPolicy, vector: NDArray[Any]) -> bool:
        """Whether a policy's parameters still lie in this vector."""
        first, width = vector.ctypes.data, vector.itemsize
        return all(
            tensor.data_ptr() == first + width * part.start and tensor.device.type == "cpu"
            for part, tensor in self._places(policy)
        )

    def _places(self, policy: MlpPolicy) -> Iterator[tuple[slice, Tensor]]:
        towers = (policy.shared, policy.actor, policy.critic)
        layers = [pair for tower in towers for pair in _layers_of(policy, tower)]
        for (w, b, n_in, n_out, *_), (layer, is_head) in zip(self.net.layers.tolist(), layers, strict=True):
            yield slice(w, w + n_in * n_out), layer.weight if is_head else layer.weight.T
            yield slice(b, b + n_out), layer.bias
        if not policy.discrete:
            yield slice(self.net.log_std, self.net.log_std + self.net.outputs), policy.log_std
        for begin, statistics in zip((self.net.seen, self.net.rewarded), _statistics(policy), strict=True):
            if statistics is not None:
                yield slice(begin, begin + statistics.numel()), statistics


def _parameters(policy: MlpPolicy) -> Iterator[Tensor]:
    """In the order of the places."""
    for tower in (policy.shared, policy.actor, policy.critic):
        for layer, _ in _layers_of(policy, tower):
            yield layer.weight
            yield layer.bias
    if not policy.discrete:
        yield policy.log_std
    yield from (statistics for statistics in _statistics(policy) if statistics is not None)


def _statistics(policy: MlpPolicy) -> tuple[Tensor | None, Tensor | None]:
    return (
        policy.seen if policy.normalize_observations else None,
        policy.rewarded if policy.normalize_rewards else None,
    )


def _layers_of(policy: MlpPolicy, tower: nn.Sequential) -> Iterator[tuple[nn.Linear, bool]]:
    yield from ((layer, False) for layer in tower if isinstance(layer, nn.Linear))
    if tower is not policy.shared:
        yield (policy.action_net if tower is policy.actor else policy.value_net), True


def _aligned(count: int) -> int:
    return -(-count // _LINE) * _LINE
