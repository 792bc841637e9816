"""Who runs: torch's DDP, and ours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import flockstep as fs
from flockstep.strategy import Strategy

DDP = "torch DDP"
HPSGD = "HPSGD"
ALONE = "no communication"
STRATEGIES: dict[str, Strategy] = {
    "LocalSGD, period 4": fs.LocalSGD(period=4),
    "LocalSGD, period 16": fs.LocalSGD(period=16),
    "DiLoCo, period 16": fs.DiLoCo(period=16),
    "CoCoD, period 4": fs.CoCoD(period=4),
    "CoCoD, period 8": fs.CoCoD(period=8),
    "StreamingDiLoCo, period 16": fs.StreamingDiLoCo(period=16),
    HPSGD: fs.HPSGD(),
    "HPSGD, bf16": fs.HPSGD(average=fs.averages.Coded(codec=fs.codecs.Cast())),
}
FAMILY = [name for name in STRATEGIES if not name.startswith(("LocalSGD", "DiLoCo"))]
"""HPSGD and those of its family that do not wait."""

Open = Callable[[ExitStack, nn.Module, torch.optim.Optimizer], nn.Module]


def _alone(stack: ExitStack, model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
    return model


def _ddp(stack: ExitStack, model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
    return DistributedDataParallel(model)


def _join(strategy: Strategy) -> Open:
    def open_it(stack: ExitStack, model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        stack.enter_context(fs.join(model, optimizer, strategy))
        return model

    return open_it


RUNNERS: dict[str, Open] = {
    ALONE: _alone,
    DDP: _ddp,
    **{name: _join(strategy) for name, strategy in STRATEGIES.items()},
}
