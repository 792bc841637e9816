"""A crew of processes on shared memory, for steps that hold the interpreter lock."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import current_process
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from flockstep.backends.real.crew.member import Member, beside, failed, orders
from flockstep.backends.real.launch import child_processes
from flockstep.backends.real.launch.child_processes import interrupted_later
from flockstep.errors import Deadlock, NodeFailed
from flockstep.node import OptimizerFactory
from flockstep.workloads.workload import Workload


class ProcessCrew:
    """Processes that live as long as the crew and wait for orders between.

    ``params`` remains the tensor it is and moves to shared memory, for good: an array that NumPy made of it before
    would still show the old place. The first member has the node's own workload, so that the buffers of a module
    follow its batches as they would without a crew; the others have copies.
    """

    kind = "processes"

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
        if params.device.type != "cpu":
            raise ValueError(
                f"a crew of processes shares a vector in the memory of the host, got one on {params.device}"
            )
        self._rank, self._timeout = rank, timeout
        self._lines: list[Connection] = []
        self._processes: list[Any] = []
        self._busy: set[int] = set()
        self._lost: dict[int, NodeFailed] = {}
        params.share_memory_()  # type: ignore[no-untyped-call]
        try:
            self._start((workload, optimizer), (params, seed, rank), count)
            self._await_ready()
        except BaseException:
            self.close()
            raise

    def work(self, steps: Sequence[int]) -> None:
        """Let member i take ``steps[i]`` steps, all at once; raises what a member raised, when all are done."""
        ordered = orders(steps, len(self._processes))
        # Of a call that Ctrl-C cut short.
        self._wait()
        # Whoever was told to work is known to be at work, wherever Ctrl-C comes.
        with interrupted_later():
            for number, count in ordered.items():
                self._busy.add(number)
                try:
                    self._lines[number].send(count)
                except OSError:
                    self._bury(number)
        if errors := self._wait() | self._lost:
            raise errors[min(errors)]

    def close(self) -> None:
        """End the processes."""
        with interrupted_later():
            child_processes.end(self._processes, self._lines)
            self._processes, self._lines = [], []
            self._busy.clear()

    def _start(self, made_of: _MadeOf, arguments: tuple[Any, ...], count: int) -> None:
        context = child_processes.context()
        with interrupted_later(), _allowed_children():
            for number in range(count):
                ours, theirs = context.Pipe()
                self._lines.append(ours)
                name = f"flockstep node {self._rank} member {number}"
                try:
                    # As it is, its tensors are shared, buffers of a module too; but a notebook's functions have no
                    # name that another process could look up.
                    try:
                        process = self._begin(context, name, (theirs, number, made_of, *arguments))
                    except OSError:
                        raise
                    except Exception:
                        made_of = _payload(made_of)
                        process = self._begin(context, name, (theirs, number, made_of, *arguments))
                finally:
                    theirs.close()
                self._processes.append(process)

    def _begin(self, context: Any, name: str, arguments: tuple[Any, ...]) -> Any:
        process = context.Process(target=_serve, args=arguments, name=name, daemon=True)
        process.start()
        return process

    def _await_ready(self) -> None:
        self._busy = set(range(len(self._processes)))
        errors = self._wait(self._timeout)
        if errors:
            raise errors[min(errors)]
        if self._busy:
            message = f"member {min(self._busy)} of the crew of node {self._rank} did not start in {self._timeout:g} s"
            raise Deadlock(message, rank=self._rank)

    def _wait(self, timeout: float | None = None) -> dict[int, NodeFailed]:
        """Until all who are at work have reported; what they raised."""
        errors = {}
        while self._busy:
            ready = wait([self._lines[number] for number in self._busy], timeout)
            if not ready:
                break
            with interrupted_later():
                for number in [number for number in self._busy if self._lines[number] in ready]:
                    error = self._hear(number)
                    if error is not None:
                        errors[number] = error
        return errors

    def _hear(self, number: int) -> NodeFailed | None:
        try:
            error: NodeFailed | None = self._lines[number].recv()
        except (EOFError, OSError):
            self._bury(number)
            return self._lost[number]
        self._busy.discard(number)
        return error

    def _bury(self, number: int) -> None:
        self._busy.discard(number)
        how = child_processes.ending(self._processes[number], self._timeout)
        self._lost.setdefault(number, failed(self._rank, number, how))


_MadeOf = tuple[Workload, OptimizerFactory] | bytes
"""What a member is made of; or the same as bytes."""


def _payload(made_of: _MadeOf) -> bytes:
    """What a member is made of, as nodes are sent theirs: functions of a notebook, too."""
    try:
        payload: bytes = cloudpickle.dumps(made_of)
    except Exception as error:
        raise TypeError(
            f"a crew of processes needs a workload and an optimizer that can be sent to one: {error}\n"
            "  what holds locks, files or sockets cannot; make them when they are first used"
        ) from error
    return payload


@contextmanager
def _allowed_children() -> Iterator[None]:
    """A node's own process is a daemon, which may have no children, lest they outlive it. Members see to that."""
    here = current_process()
    daemon, here.daemon = here.daemon, False
    try:
        yield
    finally:
        here.daemon = daemon


def _serve(
    line: Connection,
    number: int,
    made_of: _MadeOf,
    params: Tensor,
    seed: int,
    rank: int,
) -> None:
    child_processes.begin_as_child()
    torch.set_num_threads(1)
    member: Member | None = None
    steps = 0
    while True:
        try:
            if member is None:
                workload, optimizer = cloudpickle.loads(made_of) if isinstance(made_of, bytes) else made_of
                own = beside(workload) if number else workload
                member = Member(own, params, optimizer, seed=seed, rank=rank, number=number)
            else:
                member.take(steps)
        except Exception as raised:
            error = failed(rank, number, f"raised {type(raised).__name__}: {raised}")
            error.add_note("".join(traceback.format_exception(raised)))
            line.send(error)
        else:
            line.send(None)
        try:
            steps = line.recv()
        except EOFError:
            return
