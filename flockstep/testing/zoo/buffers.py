"""Buffers: statistics that move are averaged, constants come through untouched whatever they hold."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from flockstep.testing.zoo.situation import Setting, Situation, setting, small


class _Attention(nn.Module):
    """One head over four places, with a causal mask that is added."""

    def __init__(self, masked: float, *, persistent: bool = True) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(1, 9).double(), nn.Linear(3, 1).double()
        mask = torch.full((4, 4), masked, dtype=torch.float64).triu(1)
        self.register_buffer("mask", mask, persistent=persistent)
        self.mask: Tensor

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.unsqueeze(-1)).chunk(3, dim=-1)
        seen = (q @ k.transpose(1, 2) + self.mask).softmax(-1)
        out: Tensor = self.out(seen @ v).mean(1)
        return out


class _Constants(nn.Module):
    """A net whose buffers nobody changes."""

    def __init__(self, value: float, *, persistent: bool = True) -> None:
        super().__init__()
        self.inner = small()
        self.register_buffer("table", torch.tensor([value, -value, 0.1], dtype=torch.float64), persistent=persistent)
        self.register_buffer("angles", torch.linspace(0, 3, 7), persistent=persistent)
        self.register_buffer("nothing", None)
        self.register_buffer("waves", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.table: Tensor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) * self.table[2]
        return out


def _normed(*, momentum: float | None = 0.1) -> Setting:
    model = small(nn.BatchNorm1d(6, momentum=momentum))
    return setting(model, statistics=("2.running_mean", "2.running_var"))


class _Follows(nn.Module):
    """A statistic of the user's own: a new tensor at every pass, or written in place."""

    def __init__(self, *, in_place: bool, unseen: bool = False) -> None:
        super().__init__()
        self.inner, self.in_place, self.unseen = small(), in_place, unseen
        self.register_buffer("mean", torch.ones(4, dtype=torch.float64))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        now = x.detach().mean(0)
        if self.unseen:
            # Past torch's count of versions.
            self.mean.data.lerp_(now, 0.5)
        elif self.in_place:
            self.mean.lerp_(now, 0.5)
        else:
            self.mean = 0.5 * self.mean + 0.5 * now
        out: Tensor = self.inner(x - self.mean)
        return out


def _follows(*, in_place: bool, unseen: bool = False) -> Setting:
    return setting(_Follows(in_place=in_place, unseen=unseen), statistics=("mean",))


def _spectral() -> Setting:
    layer = parametrizations.spectral_norm(nn.Linear(6, 6).double())
    names = ("_u", "_v")
    return setting(small(layer), statistics=tuple(f"2.parametrizations.weight.0.{name}" for name in names))


class _Extremes(nn.Module):
    """Watches the least value seen, which begins at infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small()
        self.register_buffer("least", torch.tensor(float("inf"), dtype=torch.float64))
        self.least: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.least.copy_(torch.minimum(self.least, x.detach().min()))
        out: Tensor = self.inner(x)
        return out


BUFFERS = (
    Situation("a causal mask of minus infinity", lambda: setting(_Attention(float("-inf")))),
    Situation("a causal mask that is not saved", lambda: setting(_Attention(float("-inf"), persistent=False))),
    Situation("a mask of the least float", lambda: setting(_Attention(torch.finfo(torch.float32).min))),
    Situation("constants beyond all bounds", lambda: setting(_Constants(1e300))),
    Situation("constants that are not saved", lambda: setting(_Constants(float("nan"), persistent=False))),
    Situation("batch norm", _normed),
    Situation("batch norm that counts", lambda: _normed(momentum=None)),
    Situation("a statistic that is a new tensor every time", lambda: _follows(in_place=False)),
    Situation("a statistic in place", lambda: _follows(in_place=True)),
    Situation("a statistic that nobody announces", lambda: _follows(in_place=True, unseen=True)),
    Situation("spectral norm", _spectral),
    Situation(
        "a buffer that leaves infinity",
        lambda: setting(_Extremes()),
        refused="held values that are not finite when the loop joined, and has changed since",
    ),
)
