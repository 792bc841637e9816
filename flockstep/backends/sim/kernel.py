"""Virtual time: a heap of events, and coroutines that suspend onto it. No asyncio, no threads.

A coroutine suspends by awaiting ``Suspend(begin)``: the kernel calls ``begin(task)``, which arranges for
``kernel.resume(task, value)`` to be called at some later virtual moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol

import numpy as np

from flockstep.backends.sim.cluster.fault_schedule import Spans, after
from flockstep.errors import Deadlock, located, nodes_named
from flockstep.modes import await_in_context, torch_modes


class Owner(Protocol):
    """The node a task belongs to, as the kernel sees it."""

    rank: int
    pauses: Spans
    """When none of its tasks can go on."""

    def spent(self, kind: str, begin: float, end: float) -> None:
        """The node's main task was computing, waiting or talking from one moment to another."""


class Suspend:
    """Awaiting this hands the task to ``begin`` and waits until somebody resumes it."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Task], None]) -> None:
        self.begin = begin

    def __await__(self) -> Generator[Callable[[Task], None], Any, Any]:
        return (yield self.begin)


class Task:
    """One coroutine of one node. Also what ``spawn`` gives back: look with ``done``, wait with ``await``."""

    __slots__ = (
        "_since",
        "awaited_as",
        "coroutine",
        "doing",
        "done",
        "error",
        "joined",
        "kernel",
        "main",
        "owner",
        "result",
        "waiters",
        "where",
    )

    def __init__(self, kernel: Kernel, coroutine: Coroutine[Any, Any, Any], owner: Owner, main: bool) -> None:
        self.kernel = kernel
        self.coroutine = coroutine
        self.owner = owner
        self.main = main
        self.done = False
        self.joined = False
        """Whether whoever spawned it has its result."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.waiters: list[Task] = []
        self.where: Callable[[], str] = lambda: "start"
        """What the task waits for, in words; asked only when somebody must be told."""
        self.doing: str | None = None
        self.awaited_as = "waiting"
        """What the time of a task that awaits this one counts as."""
        self._since = 0.0

    def mark(self, doing: str | None) -> None:
        """From now on the task's time counts as computing, waiting or talking. Background tasks are not counted."""
        now = self.kernel.now
        if self.main and self.doing is not None and now > self._since:
            self.owner.spent(self.doing, self._since, now)
        self.doing = doing
        self._since = now

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self.done:
            yield from Suspend(self._join).__await__()
        self.joined = True
        if self.error is not None:
            raise self.error
        return self.result

    def _join(self, waiter: Task) -> None:
        waiter.mark(self.awaited_as)
        waiter.where = lambda: f"a spawned task that waits in {self.where()}"
        self.waiters.append(waiter)


class Kernel:
    """The event heap. Events at the same moment run in an order drawn from ``ties``: no program may rely on one."""

    def __init__(self, ties: np.random.Generator) -> None:
        self.now = 0.0
        self.tasks: dict[Task, None] = {}
        self.returned: list[int] = []
        self.crashed: list[int] = []
        self._heap: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._ties = ties
        self._drawn: list[float] = []
        self._modes = torch_modes()

    def at(self, time: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call later; a time in the past means now."""
        if not self._drawn:
            # One draw at a time would cost more than the heap itself.
            self._drawn = self._ties.random(1024).tolist()
        self._count += 1
        moment = time if time > self.now else self.now
        heapq.heappush(self._heap, (moment, self._drawn.pop(), self._count, call, arguments))

    def first(self, time: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call before all else that happens at a moment: for what was declared, which no draw may move."""
        self._count += 1
        heapq.heappush(self._heap, (max(time, self.now), -1.0, self._count, call, arguments))

    def start(self, coroutine: Coroutine[Any, Any, Any], owner: Owner, *, main: bool) -> Task:
        """Make a task of a coroutine and run it to its first suspension."""
        task = Task(self, coroutine, owner, main)
        self.tasks[task] = None
        self.resume(task)
        return task

    def resume(self, task: Task, value: Any = None, error: BaseException | None = None) -> None:
        """Go on with a task, giving it what it waited for, or raising in it."""
        if task.done:
            return
        if task.owner.pauses and (awake := after(task.owner.pauses, self.now)) > self.now:
            self.at(awake, self.resume, task, value, error)
            return
        task.mark(None)
        try:
            if error is None:
                begin = task.coroutine.send(value)
            else:
                begin = task.coroutine.throw(error)
        except StopIteration as stop:
            self._finish(task, stop.value, None)
            return
        except Exception as raised:
            self._finish(task, None, located(raised, task.owner.rank, self.now))
            return
        (begin if torch_modes() == self._modes else _complain)(task)

    def run(self) -> None:
        """Run until every task has ended; raises what a task raised, or Deadlock."""
        heap = self._heap
        try:
            while heap and self.tasks:
                self.now, _, _, call, arguments = heapq.heappop(heap)
                call(*arguments)
            if self.tasks:
                raise self._deadlock()
        finally:
            for task in self.tasks:
                task.coroutine.close()

    def cancel(self, owner: Owner) -> None:
        """End every task of a node, at once and without a word: it crashed."""
        if owner.rank in self.returned:
            self.returned.remove(owner.rank)
        self.crashed.append(owner.rank)
        for task in [t for t in self.tasks if t.owner is owner]:
            task.mark(None)
            task.done = True
            del self.tasks[task]
            task.coroutine.close()

    def _finish(self, task: Task, result: Any, error: BaseException | None) -> None:
        task.done, task.result, task.error = True, result, error
        del self.tasks[task]
        if task.main and error is None:
            self.returned.append(task.owner.rank)
        for waiter in task.waiters:
            self.at(self.now, self.resume, waiter)
        # A background task may fail before anybody waits for it: that must not pass in silence.
        if error is not None and not task.waiters:
            raise error

    def _deadlock(self) -> Deadlock:
        waiting: dict[str, list[int]] = {}
        for task in self.tasks:
            waiting.setdefault(task.where(), []).append(task.owner.rank)
        parts = [
            f"{nodes_named(sorted(set(ranks)))} {'waits' if len(set(ranks)) == 1 else 'wait'} in {where}"
            for where, ranks in waiting.items()
        ]
        for ranks, fate in ((self.returned, "returned"), (self.crashed, "crashed")):
            if ranks:
                parts.append(f"{nodes_named(sorted(ranks))} {'has' if len(ranks) == 1 else 'have'} {fate}")
        return Deadlock("; ".join(parts) + ".", time=self.now)


def _complain(task: Task) -> None:
    task.kernel.resume(task, error=await_in_context())
