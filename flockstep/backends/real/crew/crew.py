"""The crew of a node: lock-free workers that step on one shared vector (Hogwild, Recht et al. 2011).

    each member, as often as it is told, without a lock:    g = gradient(x);    x <- x - eta * g

What a member reads may be of different ages, and a number that two write at once may keep one change of the two.
Members are threads where their steps leave the interpreter lock, and processes on shared memory where they do not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from flockstep import check
from flockstep.backends.real.crew.member import descent
from flockstep.backends.real.crew.process_crew import ProcessCrew
from flockstep.backends.real.crew.thread_crew import ThreadCrew
from flockstep.node import OptimizerFactory
from flockstep.workloads.workload import Workload

_log = logging.getLogger("flockstep")


class Crew(Protocol):
    """The members, ready to work."""

    kind: str
    """What they are: "threads" or "processes"."""

    def work(self, steps: Sequence[int]) -> None:
        """Let member i take ``steps[i]`` steps, all at once; returns when all are done.

        What a member raised, or that it died, is raised here and names the member.
        """

    def close(self) -> None:
        """Leave no thread, process or descriptor behind. Twice does no harm."""


def gather(
    workload: Workload,
    params: Tensor,
    optimizer: OptimizerFactory,
    *,
    threads: int,
    seed: int,
    rank: int,
    timeout: float,
) -> Crew:
    """A crew of ``threads`` members that step on ``params``, each with an optimizer of its own.

    The first draws its batches from the node's own random numbers, so that a crew of one is the node itself. A
    workload tells with ``leaves_interpreter_lock`` that its steps may run in threads: those of ``descend`` where it
    has that, which serves plain SGD alone, else those of ``gradient``. ``timeout`` is for members to start and to
    end, not for their work, which may be long.
    """
    check.whole("gather", "threads", threads)
    check.whole("gather", "seed", seed, at_least=0)
    check.whole("gather", "rank", rank, at_least=0)
    check.positive("gather", "timeout", timeout)
    kind, why = _choose(workload, params, optimizer, threads)
    _log.info("node %d: a crew of %d %s, because %s", rank, threads, kind, why)
    if kind == "processes":
        return ProcessCrew(workload, params, optimizer, count=threads, seed=seed, rank=rank, timeout=timeout)
    return ThreadCrew(workload, params, optimizer, count=threads, seed=seed, rank=rank, timeout=timeout)


def _choose(workload: Workload, params: Tensor, optimizer: OptimizerFactory, threads: int) -> tuple[str, str]:
    """The kind of crew, and why."""
    name, has_own_steps = type(workload).__name__, hasattr(type(workload), "descend")
    if threads == 1:
        return "threads", "a single member disturbs no other"
    if not _leaves_interpreter_lock(workload):
        return "processes", f"{name} does not say that its steps leave the interpreter lock"
    if not has_own_steps:
        return "threads", f"{name}.gradient leaves the interpreter lock"
    if descent(workload, optimizer([params.detach()])) is None:
        return "processes", f"the steps of {name} that leave the interpreter lock are plain SGD on its own gradients"
    return "threads", f"{name}.descend leaves the interpreter lock"


def _leaves_interpreter_lock(workload: Workload) -> bool:
    # Its own word, not that of a workload inside it whose attributes it passes on.
    name = "leaves_interpreter_lock"
    own = hasattr(type(workload), name) or name in getattr(workload, "__dict__", ())
    return own and bool(getattr(workload, name))
