"""Blocks, dither and packing in plain torch. The engines are held to its integers."""

from __future__ import annotations

import torch
from torch import Tensor

from flockstep.codecs.blocks.blocks import BLOCK, STRIDE, Blocks

MASK = 0xFFFFFFFF


def in_blocks(v: Tensor, plan: Blocks) -> Tensor:
    """A row per block; the last one ends in zeros."""
    padded = torch.zeros(plan.blocks * BLOCK, dtype=v.dtype, device=v.device)
    padded[: plan.count] = v
    return padded.view(plan.blocks, BLOCK)


def rounded(t: Tensor, seed: int) -> Tensor:
    """floor(t + u) of each coordinate, in rows of blocks: up with the probability of what is left over."""
    f = t.floor()
    index = torch.arange(t.numel(), device=t.device).view(t.shape)
    u = _mixed((index * STRIDE + seed) & MASK) >> 8
    # In floating point t + u would round; the fraction of t, and 1 - u in 24 bits, are exact.
    up = (t - f).double() >= (2**24 - u).double() * 2.0**-24
    return f.long() + up.long()


def _mixed(x: Tensor) -> Tensor:
    # As plan.mixed, in 64 bits, since torch has no unsigned arithmetic of 32.
    x = _times(x ^ (x >> 16), 0x7FEB352D)
    x = _times(x ^ (x >> 15), 0x846CA68B)
    return x ^ (x >> 16)


def _times(x: Tensor, factor: int) -> Tensor:
    # In two halves: a product of two 32-bit numbers may not fit into 63 bits.
    low = x * (factor & 0xFFFF)
    high = (x * (factor >> 16)) & 0xFFFF
    return (low + (high << 16)) & MASK


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes of so many bits, eight in as many bytes; above 8 bits the low bytes first, then what is left, packed."""
    if bits > 8:
        return torch.cat([(codes & 0xFF).to(torch.uint8), pack(codes >> 8, bits - 8)])
    shifts = torch.arange(8, device=codes.device) * bits
    words = (codes.view(-1, 8) << shifts).sum(1)
    return words.view(-1, 1).view(torch.uint8).view(-1, 8)[:, :bits].reshape(-1)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The codes again."""
    if bits > 8:
        count = packed.numel() * 8 // bits
        return packed[:count].long() | (unpack(packed[count:], bits - 8) << 8)
    words = torch.zeros(packed.numel() // bits, 8, dtype=torch.uint8, device=packed.device)
    words[:, :bits] = packed.view(-1, bits)
    shifts = torch.arange(8, device=packed.device) * bits
    return ((words.view(torch.int64) >> shifts) & ((1 << bits) - 1)).view(-1)


def unpack_in_blocks(codes: Tensor, plan: Blocks) -> Tensor:
    """The codes in rows of blocks, zeros after the last."""
    found = torch.zeros(plan.blocks * BLOCK, dtype=torch.int64, device=codes.device)
    found[: plan.padded] = unpack(codes, plan.bits)
    return found.view(plan.blocks, BLOCK)
