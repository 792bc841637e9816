"""What the simulator says a row should take, given the time of a bare step and the link."""

from __future__ import annotations

import flockstep as fs
from benchmarks.slowlink.contenders import PERIOD
from benchmarks.slowlink.loop import build, stepper
from flockstep.strategy import Strategy


def predicted_seconds(
    strategy: Strategy, *, hidden: int, nodes: int, compute: float, rate: str, latency: float
) -> float:
    """Virtual seconds per step of the same loop with the same line on virtual nodes."""

    def train() -> float:
        model, optimizer = build(hidden)
        with fs.join(model, optimizer, strategy) as node:
            # What a step computes takes the declared time, so that the least that is a step will do.
            step = stepper(model, optimizer, batch=1, length=1)
            for _ in range(PERIOD):
                step()
            began = node.now
            for _ in range(PERIOD):
                step()
            return (node.now - began) / PERIOD

    network = fs.Network(bandwidth=rate, latency=latency)
    trace = fs.simulate(train, nodes=nodes, network=network, compute=fs.Compute(step=compute), start_skew=0.0)
    return max(map(float, trace.results.values()))
