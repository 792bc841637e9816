"""One attempt under way: a loop in the thread that waits for it, over its streams to and from all others.

A single thread: nobody has to be woken between what is read, what is made of it and what is sent on, and on a machine
that also trains there is no other core to take. Each turn writes at most a few frames to every peer and reads at most
one of each, so that what was summed is sent on while it is still in the core's cache.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial

from flockstep.backends.real.rounds.carrier.begin import MOST_BYTES, Begin, Unlike
from flockstep.backends.real.rounds.carrier.mean_task import Task
from flockstep.backends.real.rounds.carrier.stream_table import StreamTable
from flockstep.backends.real.rounds.carrier.streams import (
    HUNG_UP,
    Abandoned,
    FrameKind,
    Garbage,
    Incoming,
    Outgoing,
    Unreached,
)
from flockstep.backends.real.rounds.council.words import Attempt, Key
from flockstep.backends.real.thread_pool import run_on_thread
from flockstep.errors import LostPeer, unlike

_GRACE = 0.5
"""Seconds in which a peer that takes no more may still say why."""
_GLANCE = 0.1
_FRAMES_A_TURN, _TURNS_A_LOOK = 2, 4


class Wake:
    """Wakes a thread that waits for sockets."""

    def __init__(self) -> None:
        self.hears, self._says = socket.socketpair()
        self.hears.setblocking(False)
        self._says.setblocking(False)

    def __call__(self) -> None:
        """Wake it."""
        # Full: it is awake already. Closed: it is done.
        with suppress(OSError):
            self._says.send(b"\0")

    def heard(self) -> None:
        """It is awake."""
        with suppress(BlockingIOError):
            while self.hears.recv(4096):
                pass

    def close(self) -> None:
        """Close both ends."""
        self.hears.close()
        self._says.close()


class Undertaking:
    """This node's part in an attempt, from the first byte to the last."""

    def __init__(
        self,
        rank: int,
        table: StreamTable,
        key: Key,
        attempt: Attempt,
        ranks: tuple[int, ...],
        task: Task,
        timeout: float,
    ) -> None:
        self.attempt, self._rank, self._table, self._key, self._task = attempt, rank, table, key, task
        self._timeout, self._peers = timeout, [peer for peer in ranks if peer != rank]
        self.wake = Wake()
        self._mine = Begin.of(key, attempt, ranks, task.brings)
        self._poll = select.poll()
        self._poll.register(self.wake.hears, select.POLLIN)
        self._by_number: dict[int, Outgoing | Incoming] = {}
        """What the poll looks at."""
        self._out: dict[int, Outgoing] = {}
        self._blocked: set[int] = set()
        """Peers to whom nothing can be written now."""
        self._has_begun: set[int] = set()
        """Peers to whom BEGIN was sent."""
        self._in: dict[int, Incoming] = {}
        """The streams on which peers have begun this attempt."""
        self._others: list[Incoming] = []
        """Streams of which that is not known yet, or that belong to a later attempt."""
        self._ready: dict[Incoming, None] = {}
        self._stalled: list[Incoming] = []
        self._broken: dict[int, tuple[str, float]] = {}
        """Peers that take no more: why, and until when they may tell."""
        self._moved = dict.fromkeys(self._peers, 0.0)
        """When something last came from a peer, or went to it."""
        self._now = self._looked_at = 0.0
        self._turns = 0
        self._is_busy = False
        """Whether there may be something to do at once."""
        self._unlike: Unlike | None = None
        self._has_told: set[int] = set()
        self._opened: deque[tuple[int, Outgoing | LostPeer]] = deque()
        self._lock = threading.Lock()
        self._is_over = self.is_abandoned = False

    # From other threads ---------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Let ``run`` raise Abandoned, if it has not ended."""
        self.is_abandoned = True
        self.wake()

    def _open(self, peer: int) -> None:
        opened: Outgoing | LostPeer
        try:
            opened = self._table.open(peer, self._key.channel)
        except LostPeer as lost:
            opened = lost
        with self._lock:
            if not self._is_over:
                self._opened.append((peer, opened))
                self.wake()
                return
        if isinstance(opened, Outgoing):
            self._table.put_back(opened)

    # The loop -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Block until it is done; Abandoned, Unreached or Mismatch if that will not be."""
        self._now = time.monotonic()
        self._moved = dict.fromkeys(self._peers, self._now)
        for peer in self._peers:
            if (out := self._table.outgoing(peer, self._key.channel)) is not None:
                self._has_opened(peer, out)
            else:
                run_on_thread(partial(self._open, peer))
        self._look_for_streams()
        while self._is_busy or not self._is_done():
            self._turn()
            self._stop_if_abandoned()
        if self._unlike is not None:
            raise unlike(*self._unlike, channel=self._key.channel, round=self._key.round)

    def end(self, *, well: bool) -> None:
        """Keep the streams for the next attempt, or close all that this one has used."""
        with self._lock:
            self._is_over = True
            left = [opened for _, opened in self._opened if isinstance(opened, Outgoing)]
        for out in [*self._out.values(), *left]:
            # One that hung up when all was said is of no use either.
            self._table.put_back(out) if out.last is None or (well and not out.is_busy) else out.close()
        for stream in self._in.values():
            stream.put_down() if well else stream.close()
        for stream in self._others:
            stream.put_down()
        self.wake.close()

    def _is_done(self) -> bool:
        if self._unlike is not None:
            return all(peer in self._broken or self._has_told_why(peer) for peer in self._peers)
        return all(map(self._is_done_with, self._peers))

    def _is_done_with(self, peer: int) -> bool:
        return self._has_said_all(peer) and peer in self._in and self._task.has_received(peer)

    def _has_said_all(self, peer: int) -> bool:
        return peer in self._has_begun and self._task.has_sent(peer) and not self._is_speaking(peer)

    def _has_told_why(self, peer: int) -> bool:
        return peer in self._has_told and not self._is_speaking(peer)

    def _is_speaking(self, peer: int) -> bool:
        return peer in self._out and self._out[peer].is_busy

    def _turn(self) -> None:
        for readable in list(self._ready):
            self._read(readable)
        for peer, out in list(self._out.items()):
            if self._can_write(peer):
                self._write(peer, out)
        self._is_busy = is_busy = bool(self._ready) or any(map(self._can_write, self._out))
        self._turns += 1
        if is_busy and self._turns % _TURNS_A_LOOK:
            return
        self._now = now = time.monotonic()
        left = self._look_at_clock(now) if not is_busy or now > self._looked_at + _GLANCE else 0.0
        if not is_busy and self._is_done():
            return
        for number, events in self._poll.poll(0 if is_busy else 1000 * left):
            # One that was closed in this very turn is not there any more.
            stream = self._by_number.get(number)
            if number == self.wake.hears.fileno():
                self._woken()
            elif isinstance(stream, Incoming):
                self._ready[stream] = None
            elif stream is not None:
                self._see(stream, events)

    def _look_at_clock(self, now: float) -> float:
        """Seconds until somebody must have moved; Unreached where somebody has not."""
        self._looked_at = now
        ends = {peer: self._moved[peer] + self._timeout for peer in self._peers if not self._is_done_with(peer)}
        whys = dict.fromkeys(ends, f"nothing came or went for {self._timeout:g} s")
        for peer, (why, end) in self._broken.items():
            ends[peer], whys[peer] = end, why
        for peer, end in ends.items():
            if now >= end:
                self._lose(peer, whys[peer])
        return max(0.0, min(ends.values(), default=now) - now)

    def _lose(self, peer: int, why: str) -> None:
        # Then it is no news that others have hung up.
        self._stop_if_abandoned()
        if self._unlike is None:
            raise Unreached(peer, why)
        # What is to be told now is told to the rest.
        self._broken[peer] = why, float("inf")

    def _stop_if_abandoned(self) -> None:
        if self.is_abandoned:
            raise Abandoned(f"{self._key} is not carried out in attempt {tuple(self.attempt)}")

    def _woken(self) -> None:
        self.wake.heard()
        while self._opened:
            peer, opened = self._opened.popleft()
            if isinstance(opened, Outgoing):
                self._has_opened(peer, opened)
            else:
                self._lose(peer, opened.message)
        self._look_for_streams()

    # To others ------------------------------------------------------------------------------------------------------

    def _has_opened(self, peer: int, out: Outgoing) -> None:
        self._out[peer] = out
        self._by_number[out.connection.fileno()] = out
        self._poll.register(out.connection, select.POLLIN | HUNG_UP)

    def _see(self, out: Outgoing, events: int) -> None:
        if events & (select.POLLIN | HUNG_UP):
            self._hung_up(out.peer, "it hung up")
        else:
            self._blocked.discard(out.peer)
            self._poll.modify(out.connection, select.POLLIN | HUNG_UP)

    def _can_write(self, peer: int) -> bool:
        if peer in self._blocked or peer in self._broken:
            return False
        if self._out[peer].is_busy or peer not in self._has_begun:
            return True
        return self._task.has_frame(peer) if self._unlike is None else peer not in self._has_told

    def _write(self, peer: int, out: Outgoing) -> None:
        try:
            for _ in range(_FRAMES_A_TURN):
                if not out.is_busy:
                    if not self._can_write(peer):
                        return
                    self._begin_frame(peer, out)
                while out.is_busy:
                    if not out.push():
                        self._blocked.add(peer)
                        self._poll.modify(out.connection, select.POLLIN | select.POLLOUT | HUNG_UP)
                        return
                    self._moved[peer] = self._now
        except OSError as error:
            self._hung_up(peer, str(error))

    def _begin_frame(self, peer: int, out: Outgoing) -> None:
        if peer not in self._has_begun:
            self._has_begun.add(peer)
            out.last = self.attempt
            out.begin(FrameKind.BEGIN, 0, memoryview(self._mine.to_bytes()))
        elif self._unlike is not None:
            self._has_told.add(peer)
            out.begin(FrameKind.UNLIKE, 0, memoryview(self._unlike.to_bytes()))
        else:
            out.begin(*self._task.next_frame(peer))

    def _hung_up(self, peer: int, why: str) -> None:
        is_all_said = self._has_said_all(peer)
        out = self._out.pop(peer)
        self._forget(out)
        out.close()
        if self._unlike is not None or not is_all_said:
            # Its own stream may say why, and may only be on its way here.
            self._broken[peer] = why, time.monotonic() + _GRACE

    def _give_up_unless_it_tells(self, peer: int) -> None:
        can_tell = peer in self._in or any(stream.peer == peer for stream in self._others)
        if peer in self._broken and not can_tell:
            self._lose(peer, self._broken[peer][0])

    # From others ----------------------------------------------------------------------------------------------------

    def _look_for_streams(self) -> None:
        for peer in self._peers:
            if peer not in self._in:
                for stream in self._table.incoming(peer, self._key.channel):
                    self._others.append(stream)
                    self._watch(stream)
                    if stream.held is not None:
                        self._read(stream)

    def _watch(self, stream: Incoming) -> None:
        self._by_number[stream.connection.fileno()] = stream
        self._poll.register(stream.connection, select.POLLIN)
        # Some of it may be here already, where no poll sees it.
        self._ready[stream] = None

    def _forget(self, stream: Incoming | Outgoing) -> None:
        if self._by_number.pop(stream.connection.fileno(), None) is not None:
            self._poll.unregister(stream.connection)
        if isinstance(stream, Incoming):
            self._ready.pop(stream, None)

    def _read(self, stream: Incoming) -> None:
        is_in, peer = self._in.get(stream.peer) is stream, stream.peer
        try:
            if stream.held is not None:
                self._meet(stream, stream.held)
            count, may_have_more = stream.pull(self) if stream in self._ready else (0, False)
        except (Garbage, OSError) as error:
            self._forget(stream)
            stream.close()
            if is_in:
                self._lose(peer, self._broken[peer][0] if peer in self._broken else str(error))
            else:
                self._others.remove(stream)
                self._give_up_unless_it_tells(peer)
            return
        if count:
            self._moved[peer] = self._now
        if not may_have_more:
            self._ready.pop(stream, None)

    def place(self, stream: Incoming, kind: FrameKind, index: int, length: int) -> memoryview | None:
        """Where a frame goes that comes now."""
        is_in = self._in.get(stream.peer) is stream
        if kind is FrameKind.UNLIKE or (kind is FrameKind.BEGIN and not is_in):
            if length > MOST_BYTES:
                raise Garbage("it says too much")
            return memoryview(bytearray(length))
        if not is_in:
            raise Garbage("it goes on with what was never begun")
        if self._unlike is not None:
            return memoryview(bytearray(length))
        view = self._task.place(stream.peer, kind, index, length)
        if view is None:
            self._forget(stream)
            self._stalled.append(stream)
        return view

    def take(self, stream: Incoming, kind: FrameKind, index: int, body: memoryview) -> None:
        """It is here."""
        if kind is FrameKind.BEGIN:
            self._meet(stream, bytes(body))
        elif kind is FrameKind.UNLIKE:
            self._unlike = self._unlike or Unlike.read(bytes(body))
        elif self._unlike is None:
            self._task.take(stream.peer, kind, index, body)
            self._stop_if_all_is_here(stream)
            while self._stalled:
                self._watch(self._stalled.pop())

    def _stop_if_all_is_here(self, stream: Incoming) -> None:
        if self._task.has_received(stream.peer):
            self._forget(stream)

    def _meet(self, stream: Incoming, data: bytes) -> None:
        """A peer begins something on this stream: this attempt, one that is over, or one to come."""
        theirs, mine = Begin.read(data), self._mine
        if theirs.attempt > mine.attempt:
            stream.held = data
            self._forget(stream)
            return
        if theirs.attempt < mine.attempt or stream.peer in self._in:
            raise Garbage("it begins what is over")
        if (theirs.round, theirs.among) != (mine.round, mine.among):
            raise Garbage(f"it takes {self._key} for another round")
        self._others.remove(stream)
        stream.held, stream.last, self._in[stream.peer] = None, self.attempt, stream
        if theirs.brings != mine.brings:
            both = sorted([(self._rank, mine.brings), (stream.peer, theirs.brings)])
            self._unlike = self._unlike or Unlike(*both[0], *both[1])
        else:
            self._stop_if_all_is_here(stream)
