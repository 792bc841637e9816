"""A long run needs no more memory than a short one."""

import gc

import pytest
import torch

import flockstep as fs
from flockstep.workloads.convex import Quadratics

DIM = 5_000


def living():
    return sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor and thing.numel() >= DIM)


@pytest.mark.parametrize(
    "strategy",
    [fs.LocalSGD(period=2), fs.Swarm(period=2), fs.SwarmPull(period=2), fs.ADPSGD(), fs.Gossip()],
    ids=lambda strategy: type(strategy).__name__,
)
@pytest.mark.slow
def test_messages_are_gone_when_they_are_read(strategy):
    # Without the collector: what only it could free would be gigabytes of a large model by then.
    seen = []
    gc.collect()
    gc.disable()
    try:
        fs.simulate(
            strategy,
            Quadratics(dim=DIM),
            nodes=4,
            steps=160,
            network=fs.Network(bandwidth="100 Mbit/s", latency="1 ms"),
            compute=fs.Compute(step="20 ms", spread=0.3),
            record_every=40,
            on_row=lambda row: seen.append(living()),
        )
    finally:
        gc.enable()
    assert len(seen) >= 4
    assert max(seen[2:]) <= seen[1] + 8
