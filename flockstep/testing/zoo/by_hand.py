"""Loops written by hand: copies in, copies out, no hooks, no views, no flat model of ours.

A user's loop under a strategy, run as a workload: a gradient is one backward pass of a model that the vector was copied
into, a step is one step of its own optimizers, copied back. Virtual nodes run the strategy on that, and the joined loop
must come to the same.
"""

from __future__ import annotations

import warnings
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flockstep.backends.sim.simulate import simulate
from flockstep.strategy import Strategy
from flockstep.testing.zoo.situation import Setting, Situation
from flockstep.vector import Layout


class ByHand:
    """A situation as a workload."""

    def __init__(self, situation: Situation, steps: int, rank: int = 0, size: int = 1) -> None:
        self._situation, self._steps, self._rank, self._size = situation, steps, rank, size
        self._shards: list[ByHand] = []
        seed_cpu()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.setting: Setting = situation.make()
        self._parameters = [p for p in self.setting.model.parameters() if p.requires_grad]
        numbers = [_numbers(tensor) for tensor in self._tensors()]
        widest = reduce(torch.promote_types, [part.dtype for part in numbers])
        self._layout = Layout(tuple(map(str, range(len(numbers)))), tuple(part.shape for part in numbers), widest)
        self._step, self._extra, self._k = -1, 0, -1
        self._ready: Tensor | None = None
        self._given: Tensor | None = None
        self._absent: list[bool] = []
        self.x = torch.empty(0)

    @property
    def progress(self) -> float:
        """Told before every step: then the user's loop has run its passes, whether or not the strategy wants them."""
        return max(self._step, 0) / self._steps

    @progress.setter
    def progress(self, share: float) -> None:
        self._step = round(share * self._steps)
        self._k = self._step + self._extra
        self._ready = self._pass(self.x)

    @property
    def trained(self) -> int:
        """How many numbers are parameters."""
        starts, count = self._layout.starts, len(self._parameters)
        return starts[count] if count < len(starts) else self._layout.size

    def tensors(self, v: Tensor) -> list[Tensor]:
        """The parts of a vector like the model's."""
        return self._layout.views(v)

    def start(self) -> Tensor:
        """The model as it is made."""
        self.x = self._read()
        return self.x

    def shard(self, rank: int, size: int) -> ByHand:
        """One node's copy."""
        shard = ByHand(self._situation, self._steps, rank, size)
        self._shards.append(shard)
        return shard

    def loss(self, x: Tensor) -> float:
        """Nothing to look at."""
        return 0.0

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """That of the iteration; a second one in a step, and one before the first, take an iteration of their own."""
        g, self._ready = self._ready, None
        if g is None:
            self._k, self._extra = self._k + 1, self._extra + 1
            g = self._pass(x)
        return g

    def _pass(self, x: Tensor) -> Tensor:
        """One backward pass; what it does to statistics is done to ``x``, too."""
        self._write(x)
        k = self._k
        if self.setting.scheduler is not None:
            # torch warns of schedules that run ahead of their optimizer, as one does whose strategy only looks.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                while self.setting.scheduler.last_epoch < k:
                    self.setting.scheduler.step()
        self._situation.backward(self.setting, k, self._rank)
        self._absent = [p.grad is None for p in self._parameters]
        moved = self._read()
        # A batch that is not finite leaves no trace in statistics.
        fine = moved.isfinite()
        fine[: self.trained] = True
        x.copy_(torch.where(fine, moved, x))
        self._write(x)
        g = torch.zeros_like(x)
        for parameter, part in zip(self._parameters, self.tensors(g), strict=False):
            if parameter.grad is not None:
                part.copy_(_numbers(parameter.grad))
        self._given = g
        return g

    def step(self, x: Tensor, g: Tensor) -> None:
        """One step of the situation's own optimizers."""
        self._write(x)
        own = g is self._given
        for parameter, absent, part in zip(self._parameters, self._absent, self.tensors(g), strict=False):
            alone = own or (self._size == 1 and not bool(part.any()))
            still = not parameter.requires_grad
            parameter.grad = None if still or (absent and alone) else _like(part, parameter)
        self._situation.update(self.setting, self._k, self._rank)
        x.copy_(self._read())

    def optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """For ``simulate``: the optimizer of the shard whose vector this is."""
        return _HandOptimizer(parameters, next(shard for shard in self._shards if shard.x is parameters[0]))

    def run(self, strategy: Strategy, size: int, **hardware: Any) -> list[dict[str, Tensor]]:
        """What each node's model holds after a run of the strategy on virtual nodes."""
        trace = simulate(
            strategy,
            self,
            nodes=size,
            steps=self._steps,
            optimizer=self.optimizer,
            record_every=10**6,
            engine="events",
            **hardware,
        )
        for shard in self._shards:
            shard._write(trace.models[shard._rank])
        return [contents(shard.setting) for shard in self._shards[:size]]

    def _tensors(self) -> list[Tensor]:
        """Parameters, and the statistics that are there now: some are new tensors every time."""
        buffers = dict(self.setting.model.named_buffers())
        return [*self._parameters, *(buffers[name] for name in self.setting.statistics)]

    def _read(self) -> Tensor:
        x = torch.zeros(self._layout.size, dtype=self._layout.dtype)
        for part, tensor in zip(self.tensors(x), self._tensors(), strict=True):
            part.copy_(_numbers(tensor))
        return x

    def _write(self, x: Tensor) -> None:
        for part, tensor in zip(self.tensors(x), self._tensors(), strict=True):
            tensor.data.copy_(_like(part, tensor))


class _HandOptimizer(torch.optim.Optimizer):
    def __init__(self, parameters: list[Tensor], hand: ByHand) -> None:
        super().__init__(parameters, {})
        self._hand, self._x = hand, parameters[0]
        # What a strategy may ask of it: learning rates.
        self.param_groups = [group for own in hand.setting.optimizers for group in own.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """The hand's."""
        if self._x.grad is not None:
            self._hand.step(self._x, self._x.grad)


def seed_cpu() -> None:
    """Have a model be made alike each time; ``torch.manual_seed`` notes down for every kind of device who asked."""
    torch.default_generator.manual_seed(0)


def contents(setting: Setting) -> dict[str, Tensor]:
    """All that a model holds, buffers that ``state_dict`` leaves out included."""
    named = [*setting.model.named_parameters(), *setting.model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def _numbers(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def _like(part: Tensor, tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return torch.view_as_complex(part.reshape(*tensor.shape, 2).clone()).to(tensor.dtype)
    return part.reshape(tensor.shape).to(tensor.dtype, copy=True)
