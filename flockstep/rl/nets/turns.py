"""Workers of one process that take turns on one device: while games of some are emulated, others act and learn.

A GPU is fast where many ask at once, and slow where fifteen processes share it with a few games each. So every worker
has its games, in a thread of its own, and its copy of the policy, as processes have; but whoever has seen something new
acts, or learns, in one thread, and all that is shared lies on the device. Updates are those of lock-free workers, of
gradients at copies that are as many updates old as others have made meanwhile, and none is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from numpy.typing import NDArray

from flockstep.errors import NodeFailed
from flockstep.rl.environments.copies import Step
from flockstep.rl.nets.shared import Shared
from flockstep.rl.nets.torch_rollout import Acting
from flockstep.rl.nets.torch_worker import Worker
from flockstep.rl.nets.totals import Totals

_TELL_EVERY = 1.0
"""Seconds between two reports."""


class Turns:
    """Lets workers act and learn as their environments are ready."""

    def __init__(self, make: Callable[[int], Worker], count: int, shared: Shared) -> None:
        self._shared = shared
        self._emulators = ThreadPoolExecutor(count, "flockstep HSA2C")
        # Emulators are made one after another, whoever makes them; but their first games begin at once.
        self._workers = list(self._emulators.map(make, range(count)))
        self._ready: SimpleQueue[tuple[int, Step | BaseException]] = SimpleQueue()
        self._away = 0
        """Environments that are being stepped."""

    def train(self, since: int, until: int, hear: Callable[[Totals], bool]) -> None:
        """Until all together have taken ``until`` steps, ``since`` of them before, or ``hear`` says no."""
        totals, reported_at, wanted = Totals(), time.monotonic(), True
        going: dict[int, Acting[Any]] = {}
        try:
            for number, worker in enumerate(self._workers):
                self._begin(going, number, worker)
            while self._away:
                number, found = self._next()
                try:
                    self._send(number, going[number].send(found))
                    continue
                except StopIteration as end:
                    done = since + int(self._shared.steps.sum())
                    self._workers[number].step(end.value, totals, done, until)
                if time.monotonic() - reported_at >= _TELL_EVERY:
                    wanted = wanted and hear(self._said(totals))
                    totals, reported_at = Totals(), time.monotonic()
                if wanted and since + int(self._shared.steps.sum()) < until:
                    self._begin(going, number, self._workers[number])
        finally:
            self._call_back(going)
        if wanted:
            hear(self._said(totals))

    def close(self) -> None:
        """End the threads, and what they step."""
        self._emulators.shutdown()
        for worker in self._workers:
            worker.environments.close()

    def _begin(self, going: dict[int, Acting[Any]], number: int, worker: Worker) -> None:
        going[number] = worker.going()
        self._send(number, next(going[number]))

    def _send(self, number: int, actions: NDArray[Any]) -> None:
        self._emulators.submit(self._step, number, actions)
        self._away += 1

    def _step(self, number: int, actions: NDArray[Any]) -> None:
        try:
            self._ready.put((number, self._workers[number].environments.step(actions)))
        except BaseException as error:
            self._ready.put((number, error))

    def _next(self) -> tuple[int, Step]:
        number, found = self._ready.get()
        self._away -= 1
        if isinstance(found, BaseException):
            what = f"raised {type(found).__name__}: {found}"
            raise NodeFailed(f"worker {number} of {len(self._workers)} {what}", rank=number) from found
        return number, found

    def _said(self, totals: Totals) -> Totals:
        for worker in self._workers:
            totals.ended += worker.ended()
        return totals

    def _call_back(self, going: dict[int, Acting[Any]]) -> None:
        """Whoever is on the way has stepped, and sees where it stands; what it would do next is not done."""
        while self._away:
            with suppress(StopIteration, NodeFailed):
                number, found = self._next()
                going[number].send(found)
        for each in going.values():
            each.close()
