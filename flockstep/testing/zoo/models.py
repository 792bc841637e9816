"""What models are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from flockstep.testing.zoo.situation import Setting, Situation, batch, fit, setting, small


def _tied() -> Setting:
    model = small(nn.Linear(6, 6), nn.Linear(6, 6))
    model[3].weight = model[2].weight
    return setting(model)


def _frozen() -> Setting:
    model = small()
    model[0].weight.requires_grad_(False)
    return setting(model, torch.optim.AdamW(model.parameters(), lr=0.05))


class _Scaled(nn.Module):
    """A parameter that is one number, and one that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = small(), nn.Parameter(torch.ones((), dtype=torch.float64))
        self.nothing = nn.Parameter(torch.zeros(0, 3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) * self.scale + self.nothing.sum()
        return out


class _Sometimes(nn.Module):
    """A layer that takes part in every other forward pass only, and one that never does."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 1).double(), nn.Linear(4, 1).double()
        self.never = nn.Linear(2, 2).double()

    def forward(self, x: Tensor, both: bool) -> Tensor:
        out: Tensor = self.one(x) + (self.two(x) if both else 0.0)
        return out


def _sometimes() -> Setting:
    def loss(model: nn.Module, k: int, rank: int) -> Tensor:
        x = batch(k, rank, 8, 4)
        return nn.functional.mse_loss(model(x, k % 2 == 0), x.sum(1, keepdim=True))

    model = _Sometimes()
    return setting(model, torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.3), loss=loss)


def _lazy() -> Setting:
    model = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(1))
    return setting(model, torch.optim.SGD(model.parameters(), lr=0.05))


def _lazy_after_a_batch() -> Setting:
    model = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(1)).double()
    model(torch.ones(1, 4, dtype=torch.float64))
    return setting(model)


def _weight_norm() -> Setting:
    return setting(small(parametrizations.weight_norm(nn.Linear(6, 6).double())))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.LSTM(2, 4, num_layers=2, batch_first=True).double(), nn.Linear(4, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.cells(x.view(8, 2, 2))[0][:, -1])
        return out


def _picture_loss(model: nn.Module, k: int, rank: int) -> Tensor:
    x = batch(k, rank, 4, 3, 6, 6).to(memory_format=torch.channels_last)
    out: Tensor = model(x).square().mean()
    return out


def _channels_last() -> Setting:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Tanh(), nn.Conv2d(5, 2, 3)).double()
    return setting(model.to(memory_format=torch.channels_last), loss=_picture_loss)  # type: ignore[call-overload]


def _compiled() -> Setting:
    model = small()
    compiled: Any = torch.compile(model, backend="eager")
    return setting(model, loss=lambda _, k, rank: fit(compiled, k, rank))


class _Adapter(nn.Module):
    """A frozen layer, and two small matrices beside it, one of which begins at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, base.in_features, dtype=torch.float64))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return out


def _adapters() -> Setting:
    plain = small()
    model = nn.Sequential(_Adapter(plain[0]), plain[1], _Adapter(plain[2]))  # type: ignore[arg-type]
    trained = [p for p in model.parameters() if p.requires_grad]
    return setting(model, torch.optim.AdamW(trained, lr=0.05, weight_decay=0.1))


def _embedding(sparse: bool) -> Setting:
    def loss(model: nn.Module, k: int, rank: int) -> Tensor:
        out: Tensor = model(torch.arange(4) + (k + rank) % 5).square().mean()
        return out

    model = nn.Sequential(nn.Embedding(9, 3, sparse=sparse), nn.Linear(3, 1)).double()
    return setting(model, loss=loss)


class _Waves(nn.Module):
    """Complex numbers beside real ones of the same width."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
        self.out = nn.Linear(6, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.view_as_real(x.to(torch.complex64) @ self.turn).flatten(1)
        out: Tensor = self.out(waves.double())
        return out


def _complex() -> Setting:
    def loss(model: nn.Module, k: int, rank: int) -> Tensor:
        x = batch(k, rank, 8, 4)
        return nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))

    return setting(_Waves(), loss=loss)


def _one_storage() -> Setting:
    model = small(nn.Linear(6, 6), nn.Linear(6, 6))
    model[3].weight = nn.Parameter(model[2].weight.data.view(6, 6))  # type: ignore[operator]
    return setting(model)


def _dropout() -> Setting:
    def loss(model: nn.Module, k: int, rank: int) -> Tensor:
        torch.manual_seed(100 * rank + k)
        return fit(model, k, rank)

    return setting(small(nn.Dropout(0.5)), loss=loss)


def _checkpointed() -> Setting:
    def loss(model: nn.Module, k: int, rank: int) -> Tensor:
        x = batch(k, rank, 8, 4)
        out: Tensor = checkpoint(model, x, use_reentrant=False)
        return nn.functional.mse_loss(out, x.sum(1, keepdim=True))

    return setting(small(), loss=loss)


MODELS = (
    Situation("a plain net", lambda: setting(small())),
    Situation("tied weights", _tied),
    Situation("a frozen layer that the optimizer holds", _frozen),
    Situation("a number and an empty tensor", lambda: setting(_Scaled())),
    Situation("layers that take part at times, or never", _sometimes),
    Situation("a lazy module", _lazy, refused="has no shape yet: run one batch through the model before it joins"),
    Situation("a lazy module after a batch", _lazy_after_a_batch),
    Situation("weight norm", _weight_norm),
    Situation("an LSTM", lambda: setting(_Recurrent())),
    Situation("channels last", _channels_last),
    Situation("torch.compile", _compiled),
    Situation("adapters beside frozen layers", _adapters),
    Situation("an embedding", lambda: _embedding(False)),
    Situation("a sparse embedding", lambda: _embedding(True), refused="has sparse gradients (sparse=True)"),
    Situation("complex beside real numbers", _complex, tolerance=1e-5),
    Situation("two parameters in one memory", _one_storage, refused="share memory without being one tensor"),
    Situation("dropout", _dropout, process_wide=True),
    Situation("recomputed activations", _checkpointed),
)
