"""A user's own module, loss and data as a workload."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from flockstep import check
from flockstep.vector import trainable
from flockstep.workloads.module import ModuleWorkload
from flockstep.workloads.sharding import deal

Loss = Callable[[nn.Module, Any], Tensor]
"""``loss(module, batch)``: the mean loss of a batch, as a scalar."""
Data = Any
"""A tuple of tensors with one row per example, or anything with a length and ``[i]``, as torch's map-style datasets."""

_EVALUATED_AT_ONCE, _EVALUATED_AT_MOST = 256, 4096


class Supervised(ModuleWorkload):
    """Batches drawn with replacement from the rows of ``data``, and what ``loss`` makes of them.

    ``loss(x)`` is over the rows of ``validation``, or over the first few thousand of ``data`` where there is none. A
    node's rows are random at heterogeneity 0, and one stretch of the data, in its order, at 1.
    """

    def __init__(
        self,
        *,
        module: nn.Module,
        loss: Loss,
        data: Data,
        validation: Data = None,
        batch: int = 32,
        heterogeneity: float = 0.0,
        seed: int = 0,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"Supervised.module must be a torch module, got {module!r}")
        if any(buffer.is_floating_point() for buffer in module.buffers()):
            raise ValueError(
                "Supervised.module has float buffers, such as batch-norm statistics, which a workload does not carry\n"
                "  train it in a loop of your own: with fs.join(model, optimizer, strategy)"
            )
        self._loss, self._data = loss, data
        self._validation = data if validation is None else validation
        self._batch = check.whole(self, "batch", batch)
        self._heterogeneity = check.fraction(self, "heterogeneity", heterogeneity)
        self._seed = seed
        device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        super().__init__(build=lambda: copy.deepcopy(module), seed=seed, device=device)
        self._rows = np.arange(_length(self, "data", data))
        _length(self, "validation", self._validation)

    def batch_loss(self, module: nn.Module, rng: np.random.Generator) -> Tensor:
        """The loss on rows drawn by ``rng``."""
        return self._loss(module, _take(self._data, self._rows[rng.integers(len(self._rows), size=self._batch)]))

    def loss(self, x: Tensor) -> float:
        """The mean loss over the rows that are evaluated."""
        rows = np.arange(min(_EVALUATED_AT_MOST, _length(self, "validation", self._validation)))
        total = 0.0
        with self.evaluating(x) as module:
            for begin in range(0, len(rows), _EVALUATED_AT_ONCE):
                some = rows[begin : begin + _EVALUATED_AT_ONCE]
                total += len(some) * float(self._loss(module, _take(self._validation, some)))
        return total / len(rows)

    def shard(self, rank: int, size: int) -> Supervised:
        """The rows of node ``rank``, with a module of its own; the data itself is shared, not copied."""
        part = self.with_own_shell()
        mixture, seed = self._heterogeneity, self._seed
        part._rows = deal(_length(self, "data", self._data), rank, size, heterogeneity=mixture, seed=seed)
        return part

    def fill(self, module: nn.Module, x: Tensor) -> None:
        """Give a module like this one the parameters of a vector."""
        with torch.no_grad():
            for parameter, view in zip(trainable(module), self._layout.views(x), strict=True):
                parameter.copy_(view)


def _length(owner: object, name: str, data: Data) -> int:
    if isinstance(data, tuple | list) and data and all(isinstance(part, Tensor) for part in data):
        lengths = {len(part) for part in data}
        if len(lengths) != 1:
            raise ValueError(f"{type(owner).__name__}.{name} must have tensors of one length, got {sorted(lengths)}")
        return check.whole(owner, f"{name}'s length", lengths.pop())
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(
            f"{type(owner).__name__}.{name} must be a tuple of tensors, or a dataset with a length and [i], "
            f"got {type(data).__name__}"
        )
    return check.whole(owner, f"{name}'s length", len(data))


def _take(data: Data, rows: Sequence[int] | np.ndarray[Any, Any]) -> Any:
    if isinstance(data, tuple | list) and data and all(isinstance(part, Tensor) for part in data):
        picked = torch.as_tensor(rows)
        return tuple(part[picked.to(part.device)] for part in data)
    return default_collate([data[int(row)] for row in rows])
