"""Numbers: mixed dtypes, autocast, scaled gradients, and those that are not finite."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from flockstep.testing.zoo.situation import Setting, Situation, backward, batch, setting, sgd, small

_BAD_STEP, _BAD_NODE = 2, 0


class _Mixed(nn.Module):
    """Half of it in sixteen bits."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(4, 6).bfloat16(), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.high(self.low(x.bfloat16()).float())
        return out


def _mixed_loss(model: nn.Module, k: int, rank: int) -> Tensor:
    x = batch(k, rank, 8, 4, dtype=torch.float32)
    return nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))


def _autocast(model: nn.Module, k: int, rank: int) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return _mixed_loss(model, k, rank)


def _float32(**also: object) -> Setting:
    model = small(dtype=torch.float32)
    return setting(model, sgd(model, momentum=0.9), **also)  # type: ignore[arg-type]


def _scaled() -> Setting:
    return _float32(scaler=GradScaler("cpu", init_scale=1024.0))


def _scales(made: Setting, k: int, rank: int) -> None:
    _scales_loss(made, made.loss(made.model, k, rank))


def _scales_loss(made: Setting, loss: Tensor) -> None:
    scaler = made.also["scaler"]
    made.optimizers[0].zero_grad()
    scaler.scale(loss).backward()
    scaler.step(made.optimizers[0])
    scaler.update()


def _is_bad(k: int, rank: int) -> bool:
    return k == _BAD_STEP and rank == _BAD_NODE


def _overflows(made: Setting, k: int, rank: int) -> None:
    _scales_loss(made, made.loss(made.model, k, rank) * (float("inf") if _is_bad(k, rank) else 1.0))


def _breaks(made: Setting, k: int, rank: int) -> None:
    """By hand, too: what is done about it is the strategy's affair."""
    backward(made, k, rank)
    if _is_bad(k, rank):
        gradient = next(made.model.parameters()).grad
        if gradient is not None:
            gradient.view(-1)[1] = float("nan")


def _breaks_and_steps(made: Setting, k: int, rank: int) -> None:
    _breaks(made, k, rank)
    made.optimizers[0].step()


def _bad_batch() -> Setting:
    """A batch that is not finite, through batch norm."""

    def loss(model: nn.Module, k: int, rank: int) -> Tensor:
        x = batch(k, rank, 8, 4)
        if _is_bad(k, rank):
            x[3, 1] = float("inf")
        return nn.functional.mse_loss(model(x), batch(k, rank, 8, 1))

    # In float64 and with Adam: a single number in its state that is not finite would show for ever.
    # No bias before batch norm: its gradient would be rounding and nothing else, which Adam makes large.
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return setting(model, optimizer, loss=loss, statistics=("1.running_mean", "1.running_var"))


PRECISION = (
    Situation("float32", lambda: _float32(), tolerance=1e-4),
    Situation("bfloat16", lambda: setting(small(dtype=torch.bfloat16)), tolerance=3e-2),
    Situation("mixed dtypes", lambda: setting(_Mixed(), loss=_mixed_loss), tolerance=3e-2),
    Situation("autocast", lambda: _float32(loss=_autocast), tolerance=3e-2),
    Situation("a GradScaler", _scaled, loop=_scales, tolerance=1e-4),
    Situation("a GradScaler that overflows on one node", _scaled, loop=_overflows, backward=_breaks, tolerance=1e-4),
    Situation("a gradient that is not a number, on one node", lambda: setting(small()), _breaks_and_steps, _breaks),
    Situation("a batch that is not finite, on one node", _bad_batch),
)
