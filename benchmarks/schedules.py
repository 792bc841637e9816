"""Random misfortune on the virtual clock: does every strategy that survives it come to its end, come what may?

Every schedule is drawn from its number: a strategy with settings, two to six nodes, and one to four faults at random
moments (nodes that crash for good or come back, pauses, lost messages, partitions, slow-downs). A run fails if it ends
in a deadlock or any other error, if a node that lives at the end has not taken all its steps, if the same number does
not give the same outcome twice, or if a step is missing at DPSGD's server though nobody died. One error is expected:
that a server was lost, where it has died for good. A failed schedule is printed with its number, and
``--first NUMBER --schedules 1 --only STRATEGY`` runs it again. DPSVI is left out where flockstep[lda] is missing.

With ``--elastic`` the strategies are those whose nodes take means, in elastic runs. All nodes that end must then have
the same model, to the bit. One error is expected: that too few are left, where so many have died for good.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

import flockstep as fs
from benchmarks.report import Progress, arguments, finish
from flockstep.strategy import Strategy, is_one_sided
from flockstep.workloads.convex import Quadratics

STEPS, WITHIN = 20, 0.5
"""Steps of each node, of 10 ms; seconds in which misfortune begins."""
Rng = np.random.Generator


@dataclass(frozen=True)
class Whole:
    """Gradients of whole numbers, another one for each node: what all have moved together is known."""

    rank: int = 0

    def start(self) -> Tensor:
        """Nothing moved."""
        return torch.zeros(4, dtype=torch.float64)

    def gradient(self, x: Tensor, rng: Rng) -> Tensor:
        """Of node r: r + 1."""
        return torch.full_like(x, self.rank + 1.0)

    def loss(self, x: Tensor) -> float:
        """How far it moved."""
        return float(x.sum())

    def shard(self, rank: int, size: int) -> Self:
        """A node's own."""
        return replace(self, rank=rank)


@dataclass(frozen=True)
class Schedule:
    """One run that is to be tried."""

    number: int
    strategy: Any
    nodes: int
    faults: tuple[Any, ...]

    @property
    def elastic(self) -> fs.Elastic | bool:
        """Whether it is a run of a strategy that takes means."""
        return False if is_one_sided(self.strategy) else fs.Elastic(patience="30 ms")

    def run(self) -> fs.Trace:
        """In virtual time."""
        counted = isinstance(self.strategy, fs.DPSGD) and self.strategy.server_lr == 1
        quadratics = Quadratics(dim=4, dtype=torch.float64)
        workload = Whole() if counted else _documents() if _learns_topics(self.strategy) else quadratics
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="DPSGD's analysis")
            return fs.simulate(
                self.strategy,
                workload,
                nodes=self.nodes,
                steps=STEPS,
                optimizer=_optimizer(self.number) if self.elastic else _sgd(1.0 if counted else 0.01),
                network=fs.Network(bandwidth="10 Mbit/s", latency="1 ms"),
                compute=fs.Compute(step="10 ms", spread=0.3),
                faults=self.faults,
                timeout="50 ms",
                seed=self.number,
                elastic=self.elastic,
            )

    def dead(self) -> set[int]:
        """Who may be dead at the end: a crash of a node that is down does nothing, so that an earlier one counts."""
        return {fault.node for fault in self.faults if isinstance(fault, fs.faults.Crash) and fault.back_after is None}

    def complaint(self) -> str:
        """What is wrong with the run; nothing, if all is well."""
        try:
            trace = self.run()
        except fs.LostPeer as error:
            expected = getattr(self.strategy, "server", None) in self.dead()
            return "" if expected and "has lost the server" in str(error) else str(error)
        except fs.Deadlock as error:
            # Each view needs more than half of the one before it.
            too_few = any(words in str(error) for words in ("must be there", "none is left"))
            return "" if too_few and self.elastic and self.dead() else str(error)
        except fs.FlockstepError as error:
            return str(error)
        models = list(trace.models.values())
        if self.elastic and not all(torch.equal(model, models[0]) for model in models):
            return "nodes end with different models"
        server = getattr(self.strategy, "server", None)
        idle = server if server is not None and not self.strategy.server_trains else None
        for rank in sorted(trace.models):
            if rank != idle and trace.nodes[rank].steps != STEPS:
                return f"node {rank} took {trace.nodes[rank].steps} of {STEPS} steps"
        if (
            isinstance(self.strategy, fs.DPSGD)
            and self.strategy.server_lr == 1
            and not any(isinstance(f, fs.faults.Crash) for f in self.faults)
        ):
            due = -float(STEPS * sum(rank + 1 for rank in range(self.nodes) if rank != idle))
            moved = trace.models[self.strategy.server]
            if not np.allclose(moved.numpy(), due, rtol=1e-6):
                return f"the server moved by {moved[0]:g}, not by {due:g}"
        return ""

    def outcome(self) -> Any:
        """All that two runs of one seed must have in common."""
        try:
            trace = self.run()
        except fs.FlockstepError as error:
            return str(error)
        return [vars(node) for node in trace.nodes], {rank: model.tolist() for rank, model in trace.models.items()}


def _sgd(lr: float) -> Any:
    return functools.partial(torch.optim.SGD, lr=lr)


def _optimizer(number: int) -> Any:
    """One with no state, or some that a node which comes must take over."""
    momentum = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    return (_sgd(0.01), momentum, functools.partial(torch.optim.AdamW, lr=0.01))[number % 3]


def _pick(rng: Rng, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def _dpsgd(rng: Rng, nodes: int) -> fs.DPSGD:
    return fs.DPSGD(
        period=_pick(rng, 1, 3),
        pushes_per_update=_pick(rng, 1, 2, 3),
        max_staleness=_pick(rng, None, 0, 1, 3),
        max_steps_in_flight=_pick(rng, 0, 2),
        server_lr=_pick(rng, None, 1.0),
        server=int(rng.integers(nodes)),
        server_trains=_pick(rng, True, False),
        codec=_pick(rng, fs.codecs.Raw(), fs.codecs.Cast(), fs.codecs.Stochastic(bits=8), fs.codecs.TopK(fraction=0.5)),
        patience=100,
    )


_OF_MODELS = (fs.codecs.Raw(), fs.codecs.Modular(bits=8), fs.codecs.Modular(bits=4), fs.codecs.Cast())


def _swarm(kind: Callable[..., Any]) -> Callable[[Rng, int], Any]:
    return lambda rng, nodes: kind(
        period=_pick(rng, 1, 3), codec=_pick(rng, *_OF_MODELS), geometric=_pick(rng, True, False)
    )


def _learns_topics(strategy: Any) -> bool:
    return type(strategy).__name__ == "DPSVI"


def _dpsvi(rng: Rng, nodes: int) -> Any:
    from flockstep.lda.nodes.dpsvi import DPSVI

    return DPSVI(
        period=_pick(rng, 1, 3),
        max_steps_in_flight=_pick(rng, 0, 2),
        bits=_pick(rng, 8, 16, 32),
        server=int(rng.integers(nodes)),
        server_trains=_pick(rng, True, False),
        patience=100,
    )


def _documents() -> Any:
    """A small corpus: 60 documents of 30 words of 40 kinds."""
    from scipy.sparse import csr_matrix

    from flockstep.lda import LDA
    from flockstep.lda.nodes.topic_workload import TopicDocuments

    counts = np.random.default_rng(0).multinomial(30, np.full(40, 1 / 40), size=60)
    return TopicDocuments(
        csr_matrix(counts), model=LDA(3, batch_size=4, learning_decay=0.7, learning_offset=2.0), seed=3
    )


KINDS: dict[str, Callable[[Rng, int], Strategy]] = {
    "DPSGD": _dpsgd,
    "Swarm": _swarm(fs.Swarm),
    "SwarmPull": _swarm(fs.SwarmPull),
    "ADPSGD": lambda rng, nodes: fs.ADPSGD(codec=_pick(rng, *_OF_MODELS)),
}
if find_spec("sklearn") is not None:
    KINDS["DPSVI"] = _dpsvi


_PERIODS = (1, 2, 3, 5)
_OF_CHANGES = (
    fs.averages.Compensated(codec=fs.codecs.TopK(fraction=0.5)),
    fs.averages.Compensated(codec=fs.codecs.Stochastic(bits=4)),
)


def _few_bits(rng: Rng, *others: Any) -> Any:
    """An average that is made of two exchanges."""
    codec = _pick(rng, fs.codecs.Raw(), fs.codecs.Cast(), fs.codecs.Stochastic(bits=8))
    return _pick(rng, fs.averages.Coded(codec=codec), *others)


ELASTIC: dict[str, Callable[[Rng, int], Strategy]] = {
    "DataParallel": lambda rng, nodes: fs.DataParallel(),
    "LocalSGD": lambda rng, nodes: fs.LocalSGD(period=_pick(rng, *_PERIODS)),
    "CELGC": lambda rng, nodes: fs.CELGC(period=_pick(rng, *_PERIODS), gamma=_pick(rng, None, 0.1)),
    "CELGCUpdate": lambda rng, nodes: fs.CELGCUpdate(period=_pick(rng, *_PERIODS), gamma=0.1),
    "Episode": lambda rng, nodes: fs.Episode(period=_pick(rng, *_PERIODS)),
    "EpisodePlus": lambda rng, nodes: fs.EpisodePlus(period=_pick(rng, *_PERIODS)),
    "CoCoD": lambda rng, nodes: fs.CoCoD(period=_pick(rng, *_PERIODS)),
    "OverlapLocalSGD": lambda rng, nodes: fs.OverlapLocalSGD(period=_pick(rng, *_PERIODS)),
    "HPSGD": lambda rng, nodes: fs.HPSGD(period=_pick(rng, None, *_PERIODS)),
    "DiLoCo": lambda rng, nodes: fs.DiLoCo(period=_pick(rng, *_PERIODS)),
    "EagerDiLoCo": lambda rng, nodes: fs.EagerDiLoCo(period=_pick(rng, *_PERIODS)),
    "StreamingDiLoCo": lambda rng, nodes: fs.StreamingDiLoCo(period=_pick(rng, 4, 6), delay=2, fragments=2),
    "SClipEF": lambda rng, nodes: fs.SClipEF(),
    "DataParallel in few bits": lambda rng, nodes: fs.DataParallel(average=_few_bits(rng, *_OF_CHANGES)),
    "LocalSGD in few bits": lambda rng, nodes: fs.LocalSGD(period=_pick(rng, *_PERIODS), average=_few_bits(rng)),
    "CELGC in few bits": lambda rng, nodes: fs.CELGC(period=_pick(rng, *_PERIODS), average=_few_bits(rng)),
    "CoCoD in few bits": lambda rng, nodes: fs.CoCoD(period=_pick(rng, *_PERIODS), average=_few_bits(rng)),
    "HPSGD in few bits": lambda rng, nodes: fs.HPSGD(
        period=_pick(rng, None, *_PERIODS), average=_few_bits(rng, *_OF_CHANGES)
    ),
    "DiLoCo in few bits": lambda rng, nodes: fs.DiLoCo(
        period=_pick(rng, *_PERIODS), average=_few_bits(rng, *_OF_CHANGES)
    ),
    "StreamingDiLoCo in few bits": lambda rng, nodes: fs.StreamingDiLoCo(
        period=_pick(rng, 4, 6), delay=_pick(rng, 0, 2, 3), fragments=2, average=_few_bits(rng)
    ),
}


def _fault(rng: Rng, nodes: int) -> Any:
    node, moment = int(rng.integers(nodes)), round(float(rng.uniform(0, WITHIN)), 4)
    lasting = round(float(rng.uniform(0.001, 0.3)), 4)
    kind = _pick(rng, "crash", "return", "pause", "loss", "partition", "slowdown")
    if kind == "crash":
        return fs.faults.Crash(node=node, at=moment)
    if kind == "return":
        return fs.faults.Crash(node=node, at=moment, back_after=lasting)
    if kind == "pause":
        return fs.faults.Pause(node=node, start=moment, duration=lasting)
    if kind == "loss":
        return fs.faults.MessageLoss(
            share=float(rng.uniform(0.05, 0.5)), start=moment, duration=_pick(rng, None, lasting)
        )
    if kind == "partition":
        apart = rng.permutation(nodes)[: rng.integers(1, nodes)].tolist()
        return fs.faults.Partition(groups=(tuple(apart),), start=moment, duration=lasting)
    return fs.faults.Slowdown(node=node, start=moment, duration=lasting, factor=float(rng.uniform(1, 10)))


def drawn(number: int, kind: str) -> Schedule:
    """The schedule of a number, for one kind of strategy."""
    one_sided = kind in KINDS
    kinds = KINDS if one_sided else ELASTIC
    rng = np.random.default_rng([number, list(kinds).index(kind)] + [1] * (not one_sided))
    nodes = int(rng.integers(2, 7))
    strategy = kinds[kind](rng, nodes)
    faults: list[Any] = []
    for _ in range(rng.integers(1, 5)):
        fault = _fault(rng, nodes)
        dead = {f.node for f in [*faults, fault] if isinstance(f, fs.faults.Crash) and f.back_after is None}
        # Somebody is left.
        faults += [fault] * (len(dead) < nodes)
    return Schedule(number, strategy, nodes, tuple(faults))


def main() -> None:
    """Every kind of strategy under as many schedules as asked for."""
    parser = arguments("benchmarks.schedules", __doc__ or "")
    parser.add_argument("--schedules", type=int, help="how many in all (default: 2000, with --quick 40)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first (default: %(default)s)")
    parser.add_argument("--elastic", action="store_true", help="strategies whose nodes take means, in elastic runs")
    parser.add_argument("--only", choices=[*KINDS, *ELASTIC], help="one strategy (default: all, in turn)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kinds = [options.only] if options.only else list(ELASTIC if options.elastic else KINDS)
    # With --quick a few of the others, too.
    kinds += ["LocalSGD", "HPSGD"] * (options.quick and not options.only and not options.elastic)
    count = options.schedules or (40 if options.quick else 2000)
    of_each, block = -(-count // len(kinds)), 25
    progress, rows, failed = Progress(len(kinds) * -(-of_each // block)), [], []
    for kind in kinds:
        wrong = unlike = again = 0
        for number in range(options.first, options.first + of_each):
            if (number - options.first) % block == 0:
                progress(f"{kind}, schedules from {number}")
            schedule = drawn(number, kind)
            complaint = schedule.complaint()
            if not complaint and number % 10 == 0:
                again += 1
                if schedule.outcome() != schedule.outcome():
                    unlike, complaint = unlike + 1, "two runs of one seed differ"
            if complaint:
                wrong += 1
                failed.append(f"{schedule}\n    {complaint}")
        rows.append({"strategy": kind, "schedules": of_each, "failed": wrong, "run again": again, "unlike": unlike})
    met = {f"none of {of_each * len(kinds)} schedules fails ({len(failed)} do)": not failed}
    folder = options.out or (None if options.quick else Path(__file__).parent / "results")
    left_out = [] if "DPSVI" in KINDS else ["Left out: DPSVI, which needs flockstep[lda]."]
    note = "\n".join([*left_out, *failed])
    finish(
        "benchmarks.schedules" + "_elastic" * options.elastic,
        rows,
        figures={"failed": len(failed)},
        met=met,
        folder=folder,
        note=note,
    )


if __name__ == "__main__":
    main()
