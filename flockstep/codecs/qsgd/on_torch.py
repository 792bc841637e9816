"""QSGD's levels in plain torch: slower, with temporaries, and everywhere. The engines are held to its integers."""

from __future__ import annotations

import torch
from torch import Tensor

from flockstep.codecs.blocks.on_torch import in_blocks, pack, rounded, unpack_in_blocks
from flockstep.codecs.qsgd.levels import LEAST_SCALE, Plan


def encode(v: Tensor, seed: int, plan: Plan, scales: Tensor, codes: Tensor) -> bool:
    """Write a vector's scales and codes; False if a value is not finite, or its scale not in float32."""
    x = in_blocks(v, plan)
    m = _rounded_up(x.abs().amax(1)).clamp(min=LEAST_SCALE)
    if not bool(m.isfinite().all()):
        return False
    ratio = (plan.levels / m.double()).to(x.dtype)
    k = rounded(x.abs() * ratio[:, None], seed).clamp(max=plan.levels)
    signed = torch.where(x < 0, -k, k) + plan.levels
    scales.copy_(m)
    codes.copy_(pack(signed.view(-1)[: plan.padded], plan.bits))
    return True


def decode(scales: Tensor, codes: Tensor, plan: Plan, out: Tensor) -> None:
    """Write the vector into ``out``."""
    step = (scales.double() / plan.levels).to(out.dtype)
    signed = unpack_in_blocks(codes, plan) - plan.levels
    out.copy_((signed.to(out.dtype) * step[:, None]).view(-1)[: plan.count])


def _rounded_up(largest: Tensor) -> Tensor:
    """In float32, and never below: above its scale a value could not be right on average."""
    short = largest.float()
    above = torch.nextafter(short, torch.full_like(short, torch.inf))
    return torch.where(short.double() < largest.double(), above, short)
