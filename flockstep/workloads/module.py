"""A torch module as a workload: its parameters are views of whatever vector is asked about."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from flockstep import check
from flockstep.vector import Layout, trainable


class ModuleWorkload(ABC):
    """What to add: ``batch_loss``, ``loss`` and ``shard``.

    The module is a shell: between calls its parameters are empty, so that hundreds of shards cost no memory.
    Buffers, such as batch-norm statistics, belong to the shell and are each shard's own.
    """

    def __init__(self, *, build: Callable[[], nn.Module], seed: int, device: str | torch.device) -> None:
        check.whole(self, "seed", seed, at_least=0)
        self.device = _device(self, device)
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would reach the generators of GPUs as well.
            torch.default_generator.manual_seed(seed)
            module = build().to(self.device)
        self._layout = Layout.of(module)
        self._start = self._layout.pack(trainable(module))
        self._nothing = self._start.new_empty(0)
        self._put_on(module)

    @abstractmethod
    def batch_loss(self, module: nn.Module, rng: np.random.Generator) -> Tensor:
        """The mean loss of ``module`` on a batch; all randomness comes from ``rng``."""

    @abstractmethod
    def loss(self, x: Tensor) -> float:
        """The number training is about; use ``with self.evaluating(x) as module``."""

    @abstractmethod
    def shard(self, rank: int, size: int) -> ModuleWorkload:
        """A node's part; begin with ``self.with_own_shell()``."""

    def start(self) -> Tensor:
        """The module's initial parameters: the same for the same seed, on any device."""
        return self._start.clone()

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """The gradient of ``batch_loss`` at ``x``; zero where a parameter has no part in it."""
        with self._at(x) as module, torch.enable_grad():
            loss = self.batch_loss(module.train(), rng)
            parts = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        return self._layout.pack(parts)

    def tensors(self, v: Tensor) -> list[Tensor]:
        """The module's tensors in a vector like ``start()``, as views in their own shapes."""
        return self._layout.views(v)

    @contextmanager
    def evaluating(self, x: Tensor) -> Iterator[nn.Module]:
        """The module at ``x``, in evaluation mode and with autograd off."""
        with self._at(x) as module, torch.no_grad():
            yield module.eval()

    def with_own_shell(self) -> Self:
        """A copy with a module of its own, for a thread of its own; data is shared."""
        twin = copy.copy(self)
        twin._put_on(copy.deepcopy(self._module))
        return twin

    def _put_on(self, module: nn.Module) -> None:
        self._module = module
        self._parameters = trainable(module)
        self._empty()

    @contextmanager
    def _at(self, x: Tensor) -> Iterator[nn.Module]:
        self._layout.point(self._parameters, x.detach())
        if x.is_cuda:
            # cuDNN wants recurrent weights in a block of its own order, and warns when it has to copy them.
            for part in self._module.modules():
                if isinstance(part, nn.RNNBase):
                    part.flatten_parameters()
        try:
            yield self._module
        finally:
            self._empty()

    def _empty(self) -> None:
        for parameter in self._parameters:
            parameter.data = self._nothing


def _device(owner: object, device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{type(owner).__name__}.device must be a torch device such as 'cpu' or 'cuda', got {device!r}"
        ) from error
