"""Workers in processes of their own, which end with this one.

One that is killed leaves the others to go on: it held no lock. If it was just writing, the vector has its update in
part, the first coordinates new and the rest old; lock-free readers see such vectors all the time, and every number in
it is sound, for one is never half written.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import torch

from flockstep.backends.real.launch.child_processes import begin_as_child, context, end, ending, interrupted_later
from flockstep.errors import NodeFailed
from flockstep.rl.nets.shared import Shared
from flockstep.rl.nets.torch_worker import Worker
from flockstep.rl.nets.totals import Totals

_log = logging.getLogger("flockstep")
MadeOf = tuple[Any, ...]
"""Policy, device, a function that makes environments, settings, seed."""
_TELL_EVERY = 1.0
"""Seconds between two reports of a worker."""
_GRACE = 10.0
"""Seconds that a worker has for the update it is at, when others have to stop."""


class Processes:
    """As many as ``shared`` has slots; they wait for orders between trainings, and keep their environments."""

    def __init__(self, made_of: MadeOf, shared: Shared) -> None:
        self._shared = shared
        self._processes: list[Any] = []
        self._lines: list[Connection] = []
        self._dead: set[int] = set()
        # By value, so that modules and functions of a notebook travel too. Only to our own children.
        payload = cloudpickle.dumps(made_of)
        forking = context()
        try:
            with interrupted_later():
                for number in range(len(shared.steps)):
                    self._start(forking, number, payload)
            # All begin together, or one might be done before another is there.
            for number in range(len(shared.steps)):
                if self._received(number) is None:
                    raise self._death(number)
        except BaseException:
            self.close()
            raise

    def train(self, since: int, until: int, hear: Callable[[Totals], bool]) -> None:
        """Let all train; ``hear`` gets what each tells, and ends it by False. Raises what a worker raised.

        Of workers that are killed, the others take the part; when none is left, that is raised.
        """
        self._shared.stop.zero_()
        busy = set(range(len(self._processes))) - self._dead
        try:
            with interrupted_later():
                for number in sorted(busy):
                    self._order(number, (since, until))
            while busy:
                for number in self._ready(busy, None):
                    totals = self._hear(number, busy)
                    if totals is not None and not hear(totals):
                        self._shared.stop.fill_(1)
        except NodeFailed:
            self.close()
            raise
        except BaseException:
            self._stop(busy)
            raise

    def close(self) -> None:
        """End the processes."""
        with interrupted_later():
            end(self._processes, self._lines)
            self._processes, self._lines, self._dead = [], [], set()

    def _start(self, context: Any, number: int, payload: bytes) -> None:
        ours, theirs = context.Pipe()
        self._lines.append(ours)
        arguments = (theirs, number, payload, self._shared)
        process = context.Process(target=_serve, args=arguments, name=f"flockstep HSA2C {number}", daemon=True)
        try:
            process.start()
        finally:
            theirs.close()
        self._processes.append(process)

    def _order(self, number: int, order: tuple[int, int]) -> None:
        # Of one that is dead its line will say so.
        with suppress(OSError):
            self._lines[number].send(order)

    def _ready(self, busy: set[int], timeout: float | None) -> list[int]:
        ready = wait([self._lines[number] for number in busy], timeout)
        return [number for number in sorted(busy) if self._lines[number] in ready]

    def _hear(self, number: int, busy: set[int]) -> Totals | None:
        """What a worker tells; it is no longer busy if that was its last word, or if it died."""
        totals = self._received(number)
        if totals is None:
            self._bury(number)
        if totals is None or totals.last:
            busy.discard(number)
        return totals

    def _received(self, number: int) -> Totals | None:
        """What a worker tells; None if it died instead. Raises what it raised."""
        try:
            received = self._lines[number].recv()
        except (EOFError, OSError):
            return None
        if isinstance(received, Totals):
            return received
        what, at = received
        failure = self._failure(number, f"raised {what}")
        failure.add_note(at)
        raise failure

    def _bury(self, number: int) -> None:
        """Go on without a worker, if others are left."""
        self._dead.add(number)
        death = self._death(number)
        if len(self._dead) == len(self._processes):
            raise death
        _log.warning("%s; the others go on", death.message)

    def _stop(self, busy: set[int]) -> None:
        """Let every worker end the update it is at; whoever cannot is ended, and so are all."""
        self._shared.stop.fill_(1)
        deadline = time.monotonic() + _GRACE
        try:
            while busy:
                ready = self._ready(busy, max(0.0, deadline - time.monotonic()))
                if not ready:
                    break
                for number in ready:
                    self._hear(number, busy)
        except BaseException:
            # A worker failed, or Ctrl-C once more.
            self.close()
            raise
        if busy:
            self.close()

    def _death(self, number: int) -> NodeFailed:
        return self._failure(number, ending(self._processes[number], _GRACE))

    def _failure(self, number: int, what: str) -> NodeFailed:
        return NodeFailed(f"worker {number} of {len(self._processes)} {what}", rank=number)

    @property
    def closed(self) -> bool:
        """Whether there are none."""
        return not self._processes


def _made(make_environments: Callable[[], Any]) -> Any:
    try:
        return make_environments()
    except AssertionError as error:
        if "daemonic" not in str(error):
            raise
        # Python's own words for it name nothing that a user wrote.
        raise RuntimeError(
            "HSA2C.env starts processes, which workers that are processes themselves cannot: "
            "let it step its copies in one process, or have one thread"
        ) from error


def _serve(line: Connection, number: int, payload: bytes, shared: Shared) -> None:
    begin_as_child()
    torch.set_num_threads(1)
    try:
        policy, device, make_environments, settings, seed = cloudpickle.loads(payload)
        environments = _made(make_environments)
        worker = Worker(policy.to(device), environments, shared, settings, number=number, seed=seed)
        line.send(Totals())
        while True:
            since, until = line.recv()
            totals = Totals()
            while not totals.last:
                totals = worker.train(since, until, within=_TELL_EVERY)
                line.send(totals)
    except (EOFError, BrokenPipeError):
        # Whoever gave orders is gone.
        return
    except Exception as error:
        line.send((f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))))
