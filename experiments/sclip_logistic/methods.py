"""The methods on a ring; each has one learning rate to choose, which scales its schedule."""

from __future__ import annotations

from functools import partial

import torch

import flockstep as fs
from experiments.sclip_quadratic.cases import CONSTANT, GROWING, PLAIN, SCLIP, WITHOUT
from experiments.sclip_quadratic.falling import Falling, fifth_root, harmonic
from flockstep.node import OptimizerFactory

NORMALISED = "GT-NSGDm"
GENTLE = "without, gentle start"
"""A control: without error feedback, and with first steps as small as those of the other clips."""
METHODS = (SCLIP, WITHOUT, GENTLE, CONSTANT, GROWING, PLAIN, NORMALISED)
MAX_NORM = 1.0


def method(name: str, rate: float, scale: float) -> tuple[fs.Strategy, OptimizerFactory]:
    """A method for noise of some scale.

    sqrt(tau) is twice that scale: about what a coordinate of a gradient and its noise come to together. c_phi is
    twice sqrt(tau), so that a small gradient is followed at 2 rate / (t+1), much as the others follow theirs.
    """
    ring = fs.topologies.Ring()
    smooth = fs.clips.SmoothClip(c_phi=4 * scale, tau=(2 * scale) ** 2)
    if name == SCLIP:
        return fs.SClipEFNetwork(clip=smooth, topology=ring), partial(torch.optim.SGD, lr=rate)
    if name == NORMALISED:
        return fs.GTNSGDm(topology=ring), harmonic(rate)
    clips: dict[str, fs.Clip] = {
        WITHOUT: smooth,
        GENTLE: smooth,
        CONSTANT: fs.clips.ClipNorm(max_norm=MAX_NORM),
        GROWING: fs.clips.ClipNorm(max_norm=lambda t: MAX_NORM * (t + 1) ** 0.4),
        PLAIN: fs.clips.NoClip(),
    }
    mixed = fs.averages.Mixed(topology=ring, codec=fs.codecs.Raw())
    schedules: dict[str, OptimizerFactory] = {
        WITHOUT: fifth_root(rate),
        GENTLE: partial(Falling, rate=lambda t: rate * (t + 1) ** 0.8 / (t + 11)),
    }
    return fs.LocalSGD(period=1, clip=clips[name], average=mixed), schedules.get(name, harmonic(rate))
