"""Running a strategy's coroutine for real: wherever it suspends, block until that is done, and go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from flockstep.backends.real.thread_pool import run_on_thread
from flockstep.modes import await_in_context, torch_modes

T = TypeVar("T")


class _Here(threading.local):
    background = False
    task: Background[Any] | None = None


_here = _Here()


def in_background() -> bool:
    """Whether this code runs in a background task of a node."""
    return _here.background


def current_task() -> Background[Any] | None:
    """The background task whose code runs here, its beginning included, which runs where it was spawned."""
    return _here.task


class Block:
    """Awaiting this runs ``call``, which may block, and gives its result."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def __await__(self) -> Generator[Block, Any, Any]:
        return (yield self)


def drive(coroutine: Coroutine[Any, Any, T], first: Block | None = None) -> T:
    """Run a coroutine to its end in this thread; ``first`` is what it already waits for, if it was started."""
    modes = torch_modes()
    block = first
    value: Any = None
    error: BaseException | None = None
    while True:
        if block is not None:
            try:
                value, error = block.call(), None
            except Exception as raised:
                value, error = None, raised
        try:
            block = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if torch_modes() != modes:
            block, value, error = None, None, await_in_context()


class Background(Generic[T]):
    """A coroutine in a thread of its own: started here up to its first wait, then left to itself."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        on_error: Callable[[Exception], None],
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._ended = threading.Event()
        self._result: T | None = None
        self._error: Exception | None = None
        self._awaited = False
        self.taken = False
        """Whether somebody has its result."""
        self.view: tuple[int, ...] = ()
        """Who took part in its last round."""
        self._on_error, self._waiting = on_error, waiting
        spawner, _here.task = _here.task, self
        try:
            first = coroutine.send(None)
        except StopIteration as stop:
            self._result = stop.value
            self._ended.set()
        else:
            run_on_thread(lambda: self._run(coroutine, first))
        finally:
            _here.task = spawner

    def _run(self, coroutine: Coroutine[Any, Any, T], first: Block) -> None:
        _here.background, _here.task = True, self
        try:
            self._result = drive(coroutine, first)
        except Exception as error:
            self._error = error
            if not self._awaited:
                self._on_error(error)
        finally:
            _here.background, _here.task = False, None
            self._ended.set()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self._ended.is_set()

    @property
    def ended_well(self) -> bool:
        """Whether there is nothing left to wait for, nor to tell."""
        return self.done and self._error is None

    def wait(self) -> T:
        """Block until it has ended; its result, or its error raised."""
        self._awaited = True
        if not self.done:
            with self._waiting():
                self._ended.wait()
        self.taken = True
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def __await__(self) -> Generator[Any, Any, T]:
        result: T = yield from Block(self.wait).__await__()
        return result
