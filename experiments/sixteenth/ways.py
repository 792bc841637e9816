"""The ways of sending a sixteenth: what is run under which name."""

from __future__ import annotations

from typing import Any

import flockstep as fs
from benchmarks.defaults.runs import ALONE, PERIOD, TOGETHER, Job, run, run_with
from experiments.sixteenth.byhand import ByHand, often_at_first, rarely_at_first, regularly
from flockstep.strategy import Strategy


def _bits(bits: int) -> fs.averages.Compensated:
    return fs.averages.Compensated(codec=fs.codecs.Stochastic(bits=bits))


WAYS: dict[str, Strategy | ByHand] = {
    "LocalSGD, every 16 steps": fs.LocalSGD(period=PERIOD),
    "DiLoCo, every 16 steps": fs.DiLoCo(period=PERIOD),
    "DiLoCo, every 8 steps in 16 bits": fs.DiLoCo(period=8, average=fs.averages.Coded(codec=fs.codecs.Cast())),
    "DiLoCo, every 8 steps in 8 bits": fs.DiLoCo(period=8, average=_bits(8)),
    "DiLoCo, every 4 steps in 8 bits": fs.DiLoCo(period=4, average=_bits(8)),
    "no outer momentum, every 4 steps in 8 bits": fs.DiLoCo(period=4, average=_bits(8), outer_momentum=0.0),
    "DiLoCo, every 2 steps in 4 bits": fs.DiLoCo(period=2, average=_bits(4)),
    "DataParallel, in 2 bits": fs.DataParallel(average=_bits(2)),
    "DataParallel, sketches of rank 1": fs.DataParallel(average=fs.averages.PowerSGD(rank=1)),
    "by hand, every 16 steps": ByHand(regularly),
    "by hand, every 8, then every 32": ByHand(often_at_first),
    "by hand, every 32, then every 8": ByHand(rarely_at_first),
    "by hand, with first moments": ByHand(regularly, ("exp_avg", "momentum_buffer")),
    "by hand, with second moments": ByHand(regularly, ("exp_avg_sq",)),
    "by hand, with all moments": ByHand(regularly, ("exp_avg", "exp_avg_sq", "momentum_buffer")),
}


def one_run(job: Job) -> dict[str, Any]:
    """One node alone, DataParallel, or one of the ways."""
    if job.strategy in (ALONE, TOGETHER):
        return run(job)
    way = WAYS[job.strategy]
    return way.run(job) if isinstance(way, ByHand) else run_with(job, way)
