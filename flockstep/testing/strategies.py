"""What every strategy promises, as checks that a broken one does not pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flockstep.backends.sim.cluster.compute import Compute
from flockstep.backends.sim.cluster.network import Network
from flockstep.backends.sim.simulate import simulate
from flockstep.faults import MessageLoss
from flockstep.flock import not_row_wise
from flockstep.strategy import Strategy, describe, is_one_sided
from flockstep.testing.parts import LawBroken
from flockstep.trace import Trace
from flockstep.workloads.convex import Quadratics
from flockstep.workloads.workload import Workload

_STEPS, _MANY = 23, 200
_SGD = partial(torch.optim.SGD, lr=0.1)
_SLOW = Network(bandwidth="100 kbit/s", latency="5 ms")
_UNEVEN = Compute(step="10 ms", spread=0.5, stragglers={0: 4.0})


def check_strategy(
    strategy: Strategy, *, nodes: tuple[int, ...] = (1, 2, 5), tolerance: float = 1e-10, is_sgd: bool = True
) -> None:
    """Raise LawBroken unless a strategy keeps its laws, on virtual nodes.

    Without noise and with the same data everywhere it is plain SGD; one that is one-sided, whose nodes stand at
    different steps, on one node. One seed gives one outcome, to the bit. All bytes sent are received and no message is
    left unread. It ends, whatever the start skew, the stragglers and the order of simultaneous events. One gradient
    that is not finite, on one node, is counted there and reaches no node's model. If it is one-sided and plain SGD,
    nodes that stand apart and have no gradients come together: in step, with calls that cross, and where replies are
    late or lost.

    Args:
        strategy: The strategy to check, with clips wide enough not to act, and codecs exact enough for ``tolerance``.
        nodes: Numbers of nodes to try.
        tolerance: Largest distance from plain SGD.
        is_sgd: False for a strategy that is something else by intent, because it merges late or has an outer optimizer.

    Example:
        check_strategy(MyStrategy(period=4))
    """
    for size in nodes:
        if (why := _refusal(strategy, size)) is not None:
            raise LawBroken(f"{describe(strategy)} does not run on {size} nodes: {why}")
        if is_sgd and (size == 1 or not is_one_sided(strategy)):
            _is_sgd_where_all_are_alike(strategy, size, tolerance)
        _loses_no_byte(strategy, size, _repeats_itself(strategy, size))
        _survives_a_bad_gradient(strategy, size)
        if is_sgd and size > 1 and is_one_sided(strategy):
            _comes_together(strategy, size)


def check_synchronous(strategy: Strategy, *, nodes: tuple[int, ...] = (1, 2, 5)) -> None:
    """Raise LawBroken unless the hardware leaves the numbers of a synchronous strategy alone.

    If it says that it is row-wise, running all nodes as one matrix must leave them alone, too, up to rounding.

    Args:
        strategy: The strategy to check.
        nodes: Numbers of nodes to try.

    Example:
        check_synchronous(MyStrategy(period=4))
    """
    for size in nodes:
        plain, uneven = _run(strategy, size), _run(strategy, size, network=_SLOW, compute=_UNEVEN)
        if not _same(plain, uneven):
            raise LawBroken(f"{describe(strategy)} gives other numbers on {size} nodes when the hardware is uneven")
        if not_row_wise(strategy) is None:
            stacked = _run(strategy, size, engine="stacked")
            worst = max(_distance(plain.models[rank], stacked.models[rank]) for rank in plain.models)
            if worst > 1e-12:
                raise LawBroken(f"{describe(strategy)} stacked is {worst:.2g} away from itself on {size} nodes")


def _run(
    strategy: Strategy, size: int, *, noise: float = 1.0, alike: bool = False, engine: str = "events", **hardware: Any
) -> Trace:
    workload = Quadratics(dim=7, noise=noise, heterogeneity=0.0 if alike else 1.0, dtype=torch.float64)
    return simulate(strategy, workload, nodes=size, steps=_STEPS, optimizer=_SGD, seed=5, engine=engine, **hardware)


def _refusal(strategy: Strategy, size: int) -> str | None:
    for seed_of_ties in range(3):
        skew = 0.05 * seed_of_ties
        try:
            _run(strategy, size, network=_SLOW, compute=_UNEVEN, start_skew=skew)
        except Exception as error:
            return str(error)
    return None


def _is_sgd_where_all_are_alike(strategy: Strategy, size: int, tolerance: float) -> None:
    workload = Quadratics(dim=7, noise=0.0, heterogeneity=0.0, dtype=torch.float64)
    x = workload.start()
    optimizer = _SGD([x])
    for _ in range(_STEPS):
        x.grad = torch.from_numpy(workload.curvature * (x.numpy() - workload.centre))
        optimizer.step()
    worst = max(_distance(model, x) for model in _run(strategy, size, noise=0.0, alike=True).models.values())
    if worst > tolerance:
        raise LawBroken(f"{describe(strategy)} with the same data on {size} node(s) is {worst:.2g} away from plain SGD")


def _repeats_itself(strategy: Strategy, size: int) -> Trace:
    first, second = (_run(strategy, size, network=_SLOW, compute=_UNEVEN) for _ in range(2))
    if not _same(first, second) or first.to_json() != second.to_json():
        raise LawBroken(f"{describe(strategy)} gives another outcome on {size} nodes when it is run again")
    return first


def _loses_no_byte(strategy: Strategy, size: int, trace: Trace) -> None:
    sent, received = (sum(getattr(node, name) for node in trace.nodes) for name in ("bytes_sent", "bytes_received"))
    if sent != received:
        raise LawBroken(f"{describe(strategy)} on {size} nodes sent {sent} bytes and received {received}")
    if unread := sum(node.counts.get("unread messages", 0) for node in trace.nodes):
        raise LawBroken(f"{describe(strategy)} on {size} nodes left {unread} messages unread")


class _BreaksOnce:
    """A problem whose last node has one gradient that is not finite."""

    def __init__(self, inside: Workload, *, breaks: bool = False) -> None:
        self._inside, self._breaks, self._calls = inside, breaks, 0

    def start(self) -> Tensor:
        """As inside."""
        return self._inside.start()

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """As inside, but for one."""
        self._calls += 1
        g = self._inside.gradient(x, rng)
        return g * torch.nan if self._breaks and self._calls == _STEPS // 2 else g

    def loss(self, x: Tensor) -> float:
        """As inside."""
        return self._inside.loss(x)

    def shard(self, rank: int, size: int) -> _BreaksOnce:
        """One node's part."""
        return _BreaksOnce(self._inside.shard(rank, size), breaks=rank == size - 1)


def _survives_a_bad_gradient(strategy: Strategy, size: int) -> None:
    workload = _BreaksOnce(Quadratics(dim=7, dtype=torch.float64))
    trace = simulate(strategy, workload, nodes=size, steps=_STEPS, optimizer=_SGD, seed=5, network=_SLOW)
    if not all(bool(model.isfinite().all()) for model in trace.models.values()):
        raise LawBroken(f"{describe(strategy)} on {size} nodes lets one gradient that is not finite into its models")
    last = trace.nodes[-1]
    if last.gradients >= _STEPS // 2 and last.counts.get("not finite") != 1:
        raise LawBroken(f"{describe(strategy)} on {size} nodes does not count a gradient that is not finite")


@dataclass(frozen=True)
class _Scattered:
    """Each node's first step leads elsewhere; there is no other."""

    rank: int = 0

    def start(self) -> Tensor:
        """The same for all."""
        return torch.zeros(7, dtype=torch.float64)

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Away from the start, and nothing after it."""
        if x.any():
            return torch.zeros_like(x)
        return torch.from_numpy(np.random.default_rng([self.rank]).standard_normal(7))

    def loss(self, x: Tensor) -> float:
        """How far from the start."""
        return float(x.square().sum())

    def shard(self, rank: int, size: int) -> _Scattered:
        """One node's part."""
        return _Scattered(rank)


def _comes_together(strategy: Strategy, size: int) -> None:
    run = partial(simulate, strategy, _Scattered(), nodes=size, steps=_MANY, optimizer=_SGD, record_every=1, seed=5)
    surroundings: dict[str, dict[str, Any]] = {
        "in step": {"start_skew": 0.0},
        "on a link slower than a step": {"latency": "15 ms"},
        "where replies are lost": {"faults": [MessageLoss(share=0.1)], "timeout": "50 ms"},
    }
    for where, hardware in surroundings.items():
        network = Network(bandwidth="1 Gbit/s", latency=hardware.pop("latency", "1 ms"))
        spreads = [row.spread for row in run(network=network, compute=Compute(step="10 ms"), **hardware).rows]
        if spreads[-1] > 1e-2 * max(spreads):
            raise LawBroken(f"{describe(strategy)} on {size} nodes {where}: nodes without gradients stay apart")


def _same(one: Trace, other: Trace) -> bool:
    return all(torch.equal(one.models[rank], other.models[rank]) for rank in one.models)


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())
