"""One node of ``benchmarks.a2c.nodes``, as torchrun would start it: the server, or a worker with one thread."""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

import flockstep as fs
from benchmarks.slowlink.place import take_place
from flockstep.rl import Settings
from flockstep.rl.nodes.node_workload import ARRIVE, ActorCriticBursts

STRATEGY = fs.DPSGD(max_steps_in_flight=1, server_lr=1.0, server_trains=False)
ENV = "CartPole-v1"


def workload(updates: int, seed: int) -> ActorCriticBursts:
    """What a worker does between two exchanges."""
    return ActorCriticBursts(env=ENV, settings=Settings(period=updates), episodes=100, seed=seed)


def main() -> None:
    """Take so many bursts, and say how long they took with the server and without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rank = take_place(servers=1)
    work = workload(options.updates, options.seed)
    alone = _alone(work, options.bursts // 4)
    trace = fs.launch(STRATEGY, work, steps=options.bursts, optimizer=ARRIVE, record_every=options.bursts, timeout=60.0)
    own = trace.nodes[rank]
    print(
        json.dumps(
            {
                "rank": rank,
                "steps_per_second": own.gradients * work.timesteps / own.seconds,
                "alone": alone,
                "bytes": own.bytes_sent,
            }
        )
    )


def _alone(work: ActorCriticBursts, bursts: int) -> float:
    """Steps per second without anybody to talk to; whatever has to be compiled is, before the clock runs."""
    shard, x, rng = work.shard(0, 1), work.start(), np.random.default_rng(0)
    shard.gradient(x, rng)
    began = time.perf_counter()
    for _ in range(bursts):
        x -= shard.gradient(x, rng)
    return bursts * work.timesteps / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
