"""SwarmSGD among many nodes, in virtual time: what a slow node costs the others, and what an exchange costs.

Sixty-four virtual nodes on 100 Mbit/s links, 50 ms a step with a spread of 20%; then node 3 is four times slower. Told
are the steps per second of the *other* nodes, with and without it, for Swarm in 8 bits and for DataParallel. Then Swarm
on 8 to 256 nodes: bytes and seconds per exchange, which should not depend on how many nodes there are. Virtual time is
exact: one seed, one outcome.
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import flockstep as fs
from benchmarks.report import Progress, arguments, finish
from flockstep.strategy import Strategy, describe
from flockstep.workloads.convex import Quadratics


@dataclass(frozen=True, kw_only=True)
class Timed(fs.Swarm):
    """Swarm with an eye on the virtual clock, which strategies do not see."""

    async def run(self, node: Any) -> None:
        """Count what every call takes, thanks left out."""
        ask = node.ask

        async def timed(peer: int, topic: str, message: Any) -> Any:
            began = node.world.kernel.now
            reply = await ask(peer, topic, message)
            if topic == "swarm":
                node.count("microseconds", round(1e6 * (node.world.kernel.now - began)))
            return reply

        node.ask = timed
        await super().run(node)


SWARM = Timed(period=4, codec=fs.codecs.Modular(bits=8))
STRAGGLER, SLOWER = 3, 4.0
NETWORK = fs.Network(bandwidth="100 Mbit/s", latency="5 ms")
SGD = functools.partial(torch.optim.SGD, lr=0.05)
UNDISTURBED, CONSTANT = 0.01, 0.05


def run(strategy: Strategy, nodes: int, steps: int, dim: int, stragglers: dict[int, float], seed: int) -> fs.Trace:
    """One run in virtual time."""
    return fs.simulate(
        strategy,
        Quadratics(dim=dim),
        nodes=nodes,
        steps=steps,
        optimizer=SGD,
        network=NETWORK,
        compute=fs.Compute(step="50 ms", spread=0.2, stragglers=stragglers),
        record_every=steps,
        seed=seed,
    )


def others_pace(trace: fs.Trace) -> float:
    """Steps per second of all nodes but the one that may be slow."""
    return statistics.fmean(node.steps / node.seconds for node in trace.nodes if node.rank != STRAGGLER)


def _name(strategy: Strategy) -> str:
    return describe(strategy).replace("Timed", "Swarm")


def main() -> None:
    """Two tables in one."""
    options = arguments("benchmarks.swarm", __doc__ or "").parse_args()
    torch.set_num_threads(1)
    nodes, steps, dim = (8, 20, 5_000) if options.quick else (64, 200, 50_000)
    sizes, seeds = ((4, 8), (0,)) if options.quick else ((8, 16, 64, 256), (0, 1, 2))
    progress, rows = Progress(2 * 2 * len(seeds) + len(sizes)), []
    slowed = {}
    for strategy in (SWARM, fs.DataParallel()):
        ratios = []
        for seed in seeds:
            pace = []
            for stragglers in ({}, {STRAGGLER: SLOWER}):
                progress(f"{_name(strategy)}, {nodes} nodes, {'one slow' if stragglers else 'none slow'}, seed {seed}")
                pace.append(others_pace(run(strategy, nodes, steps, dim, stragglers, seed)))
            ratios.append(pace[1] / pace[0])
            rows.append(
                {
                    "strategy": _name(strategy),
                    "nodes": nodes,
                    "seed": seed,
                    "others' steps/s": round(pace[0], 3),
                    "with one 4x slower": round(pace[1], 3),
                    "ratio": round(pace[1] / pace[0], 4),
                }
            )
        slowed["Swarm" if strategy is SWARM else "DataParallel"] = ratios
    costs: list[dict[str, Any]] = []
    for size in sizes:
        progress(f"the cost of an exchange among {size} nodes")
        trace = run(SWARM, size, steps, dim, {}, seeds[0])
        exchanges = sum(node.counts["exchanges"] for node in trace.nodes)
        costs.append(
            {
                "strategy": _name(SWARM),
                "nodes": size,
                "seed": seeds[0],
                "others' steps/s": round(others_pace(trace), 3),
                "kB per exchange": round(sum(node.bytes_sent for node in trace.nodes) / exchanges / 1e3, 3),
                "ms per exchange": round(sum(node.counts["microseconds"] for node in trace.nodes) / exchanges / 1e3, 3),
            }
        )
    rows += costs
    worst = max(abs(1 - ratio) for ratio in slowed["Swarm"])
    waits = statistics.fmean(slowed["DataParallel"])
    steady = {unit: [row[unit] for row in costs] for unit in ("kB per exchange", "ms per exchange")}
    met = {
        f"with one of {nodes} nodes 4x slower the others keep their pace within 1% ({worst:.2%} at most)": worst
        <= UNDISTURBED,
        **{
            f"{unit} from {sizes[0]} to {sizes[-1]} nodes: {min(v):.4g} to {max(v):.4g}, within 5%": max(v) / min(v)
            <= 1 + CONSTANT
            for unit, v in steady.items()
        },
    }
    note = f"DataParallel keeps {waits:.3f} of its pace beside a node that is 4x slower."
    folder = options.out or (None if options.quick else Path(__file__).parent / "results")
    finish("benchmarks.swarm", rows, figures={"kept": slowed, **steady}, met=met, folder=folder, note=note)


if __name__ == "__main__":
    main()
