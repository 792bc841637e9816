"""The rows: the same loop with nothing, with torch's own ways to talk, and with ours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed.algorithms.model_averaging.averagers as averagers
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel

import flockstep as fs
from benchmarks.slowlink.loop import Step, build, stepper
from flockstep.strategy import Strategy

# torch ships no types for these.
dist: Any = torch.distributed
hooks: Any = post_localSGD_hook
PERIOD = 16
ALONE = "no communication"
SWARM = "Swarm, H = 4, 8 bits"
HPSGD = "HPSGD, 4 steps or as many as fit"
SAME_PERIOD = f"torch PostLocalSGD, period {PERIOD}"
# Never reached: what a step may be capped at does not matter for its time, and random text gives no large gradients.
_GAMMA = 1e6

OURS: dict[str, Strategy] = {
    "DataParallel": fs.DataParallel(),
    "CELGC, I = 4": fs.CELGC(period=4, gamma=_GAMMA),
    "CELGC, I = 16": fs.CELGC(period=PERIOD, gamma=_GAMMA),
    "CELGC, I = 16, bf16": fs.CELGC(period=PERIOD, gamma=_GAMMA, average=fs.averages.Coded(codec=fs.codecs.Cast())),
    SWARM: fs.Swarm(period=4, codec=fs.codecs.Modular(bits=8)),
    "CoCoD, period 4": fs.CoCoD(period=4),
    HPSGD: fs.HPSGD(min_period=4),
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the model and its batch are."""

    hidden: int
    batch: int


Open = Callable[[ExitStack, Size], Step]


def alone(stack: ExitStack, size: Size) -> Step:
    """The bare loop."""
    return stepper(*build(size.hidden), size.batch)


def halved(state: Any, bucket: Any) -> Any:
    """Torch's bf16 hook by another name: under its own, DDP refuses it without NCCL, though gloo adds bf16 well."""
    return default_hooks.bf16_compress_hook(state, bucket)


# DDP checks them, as objects.
halved.__annotations__ = default_hooks.bf16_compress_hook.__annotations__


def ddp(stack: ExitStack, size: Size, *, bf16: bool = False) -> Step:
    """Torch's DDP, gradients in full or in half precision."""
    model, optimizer = build(size.hidden)
    parallel = DistributedDataParallel(model)
    if bf16:
        parallel.register_comm_hook(None, halved)
    return stepper(parallel, optimizer, size.batch)


def post_local_sgd(stack: ExitStack, size: Size, *, period: int) -> Step:
    """Torch's local SGD: every node a group of its own between averages, and no warm-up."""
    # Here, because torch itself warns of its own age when this is imported.
    from torch.distributed.optim import PostLocalSGDOptimizer

    model, optimizer = build(size.hidden)
    parallel = DistributedDataParallel(model)
    own, _ = dist.new_subgroups(group_size=1)
    state = hooks.PostLocalSGDState(process_group=None, subgroup=own, start_localSGD_iter=0)
    parallel.register_comm_hook(state, hooks.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=period, warmup_steps=0)
    return stepper(parallel, PostLocalSGDOptimizer(optim=optimizer, averager=averager), size.batch)


def joined(stack: ExitStack, size: Size, *, strategy: Strategy) -> Step:
    """Ours: the bare loop and one line."""
    model, optimizer = build(size.hidden)
    stack.enter_context(fs.join(model, optimizer, strategy))
    return stepper(model, optimizer, size.batch)


TORCH: dict[str, Open] = {
    "torch DDP": ddp,
    "torch DDP, bf16 hook": partial(ddp, bf16=True),
    # The period of its documentation's example, and ours.
    "torch PostLocalSGD, period 4": partial(post_local_sgd, period=4),
    SAME_PERIOD: partial(post_local_sgd, period=PERIOD),
}
CONTENDERS: dict[str, Open] = {
    ALONE: alone,
    **TORCH,
    **{name: partial(joined, strategy=strategy) for name, strategy in OURS.items()},
}
