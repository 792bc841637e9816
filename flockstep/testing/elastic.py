"""What a strategy promises where nodes die and come back: whenever that happens, the others go on, and agree."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from flockstep.backends.sim.cluster.compute import Compute
from flockstep.backends.sim.cluster.network import Network
from flockstep.backends.sim.simulate import simulate
from flockstep.elastic import Elastic
from flockstep.errors import FlockstepError
from flockstep.faults import Crash
from flockstep.node import OptimizerFactory
from flockstep.strategy import Strategy, describe
from flockstep.testing.parts import LawBroken
from flockstep.trace import Trace
from flockstep.workloads.convex import Quadratics

_STEPS, _STEP = 24, 0.05
_AWAY = 0.12
# A model takes longer than a step to travel: crashes fall before, into and behind rounds, and into live checkpoints.
_NETWORK = Network(bandwidth="100 kbit/s", latency="4 ms")
_COMPUTE = Compute(step=_STEP, spread=0.1)


def check_elastic(
    strategy: Strategy,
    *,
    nodes: tuple[int, ...] = (2, 3, 5),
    tolerance: float = 0.03,
    optimizer: OptimizerFactory = partial(torch.optim.SGD, lr=0.1),
) -> None:
    """Raise LawBroken unless a strategy survives the death and the return of any node, at any step of a short run.

    On virtual nodes. One node at a time, the first and the last, dies at many moments: at every step and in every part
    of a round, and comes back soon after or stays dead. The run must end; nodes that end with the same model when
    nothing happens must do so then, to the bit; where a node came back, the loss must be near that of the undisturbed
    run; and one seed must give one outcome.

    Args:
        strategy: The strategy to check.
        nodes: Numbers of nodes to try, 2 or more.
        tolerance: By how much the loss may differ, as a share of the undisturbed run's.
        optimizer: Makes a node's torch optimizer.

    Example:
        check_elastic(MyStrategy(period=4))
    """
    for size in nodes:
        calm = _run(strategy, size, (), optimizer)
        alike = _apart(calm) == 0
        for number, moment in enumerate(_moments(calm.seconds)):
            for rank in (0, size - 1):
                # Every second death is for good, and every node has both.
                crash = Crash(node=rank, at=moment, back_after=None if (number + rank) % 2 else _AWAY)
                where = f"{describe(strategy)} on {size} nodes with {crash}"
                try:
                    trace = _run(strategy, size, (crash,), optimizer)
                except FlockstepError as error:
                    raise LawBroken(f"{where} does not come to its end: {error}") from error
                if alike and _apart(trace):
                    raise LawBroken(f"{where} ends with models that lie {_apart(trace):.2g} apart")
                if crash.back_after is not None and abs(trace.loss - calm.loss) > tolerance * calm.loss:
                    raise LawBroken(f"{where} ends at a loss of {trace.loss:.4g}, undisturbed at {calm.loss:.4g}")
        again = [_run(strategy, size, (Crash(node=0, at=0.4, back_after=_AWAY),), optimizer) for _ in range(2)]
        if again[0].to_json() != again[1].to_json():
            raise LawBroken(f"{describe(strategy)} gives another outcome on {size} nodes when it is run again")


def _moments(seconds: float) -> list[float]:
    """One in every step of the run, and each in another part of its step."""
    return [round((k + 0.618 * k % 1) * _STEP, 6) for k in range(int(seconds / _STEP))]


def _run(strategy: Strategy, size: int, faults: tuple[Crash, ...], optimizer: OptimizerFactory) -> Trace:
    # The same data everywhere: what a dead node would have learned from its own is not what is asked.
    workload = Quadratics(dim=40, noise=0.05, heterogeneity=0.0, dtype=torch.float64)
    return simulate(
        strategy,
        workload,
        nodes=size,
        steps=_STEPS,
        optimizer=optimizer,
        network=_NETWORK,
        compute=_COMPUTE,
        faults=faults,
        seed=3,
        record_every=_STEPS,
        elastic=Elastic(min_nodes=1, patience=0.08),
    )


def _apart(trace: Trace) -> float:
    models: list[Tensor] = list(trace.models.values())
    return max(float((model - models[0]).abs().max()) for model in models)
