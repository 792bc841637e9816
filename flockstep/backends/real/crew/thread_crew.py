"""A crew of threads, for steps that leave the interpreter lock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from queue import SimpleQueue

from torch import Tensor

from flockstep.backends.real.crew.member import Member, beside, failed, orders
from flockstep.node import OptimizerFactory
from flockstep.workloads.workload import Workload

Orders = SimpleQueue[tuple[int, Future[None]] | None]
"""How many steps to take, and where to report; None is the end."""


class ThreadCrew:
    """Threads that live as long as the crew and wait for orders between.

    Ctrl-C may come between any two lines here. What a call leaves behind is therefore something that the next can look
    at as often as it likes: a report that was taken out of a queue might get lost.
    """

    kind = "threads"

    def __init__(
        self,
        workload: Workload,
        params: Tensor,
        optimizer: OptimizerFactory,
        *,
        count: int,
        seed: int,
        rank: int,
        timeout: float,
    ) -> None:
        self._rank, self._timeout = rank, timeout
        self._orders: list[Orders] = []
        self._threads: list[threading.Thread] = []
        self._under_way: dict[int, Future[None]] = {}
        for number in range(count):
            # The first has the node's own workload: a crew of one leaves a module's buffers as the node would.
            own = beside(workload) if number else workload
            member = Member(own, params, optimizer, seed=seed, rank=rank, number=number)
            arguments = (member, line := Orders())
            name = f"flockstep node {rank} member {number}"
            self._orders.append(line)
            self._threads.append(threading.Thread(target=_serve, args=arguments, name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def work(self, steps: Sequence[int]) -> None:
        """Let member i take ``steps[i]`` steps, all at once; raises what a member raised, when all are done."""
        ordered = orders(steps, len(self._threads))
        # Of a call that Ctrl-C cut short: what has not begun never will.
        for future in self._under_way.values():
            future.cancel()
        self._wait()
        self._under_way = {number: Future() for number in ordered}
        for number, count in ordered.items():
            self._orders[number].put((count, self._under_way[number]))
        if errors := self._wait():
            number = min(errors)
            error = errors[number]
            raise failed(self._rank, number, f"raised {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """End the threads; one that is still at work ends after it."""
        for line in self._orders:
            line.put(None)
        for thread in self._threads:
            thread.join(self._timeout)
        self._orders, self._threads = [], []

    def _wait(self) -> dict[int, BaseException]:
        errors = {}
        for number, future in self._under_way.items():
            with suppress(CancelledError):
                error = future.exception()
                if error is not None:
                    errors[number] = error
        self._under_way = {}
        return errors


def _serve(member: Member, line: Orders) -> None:
    while (order := line.get()) is not None:
        steps, future = order
        if not future.set_running_or_notify_cancel():
            continue
        try:
            member.take(steps)
        except BaseException as error:
            # All of them: whoever waits for the report would wait for ever.
            future.set_exception(error)
        else:
            future.set_result(None)
