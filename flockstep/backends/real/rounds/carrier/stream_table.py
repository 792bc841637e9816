"""All streams of a node: those it has opened to others, and those that others have opened to it."""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from flockstep.backends.real.mailbox.mailbox import Mailbox
from flockstep.backends.real.rounds.carrier.streams import Incoming, Outgoing
from flockstep.backends.real.rounds.council.words import Attempt

_MOST_OF_ONE = 8
"""Streams of one peer for one channel; more than two are a sign that something is wrong there."""


class StreamTable:
    """Hands streams to attempts, and keeps them between two."""

    def __init__(self, mailbox: Mailbox, timeout: float, came: Callable[[str], None], end: Callable[[], None]) -> None:
        self._mailbox, self._came = mailbox, came
        self._patience = timeout
        # Whoever writes gives a silent stream up before whoever reads does.
        self._longest_idle, self._longest_silence = 2 * timeout, 4 * timeout
        self._lock = threading.Lock()
        self._outgoing: dict[tuple[int, str], Outgoing] = {}
        self._incoming: dict[tuple[int, str], list[Incoming]] = defaultdict(list)
        self._closed = False
        mailbox.take_streams(self._take, end)

    # To others ------------------------------------------------------------------------------------------------------

    def outgoing(self, peer: int, channel: str) -> Outgoing | None:
        """The stream to a peer, if one is open and good as far as can be seen; it is the caller's until put back."""
        with self._lock:
            stream = self._outgoing.pop((peer, channel), None)
        if stream is None:
            return None
        if time.monotonic() - stream.used_at > self._longest_idle or stream.has_ended:
            stream.close()
            return None
        return stream

    def open(self, peer: int, channel: str) -> Outgoing:
        """A new one; LostPeer where the peer cannot be reached."""
        return Outgoing(peer, channel, self._mailbox.open_stream(peer, channel), self._mailbox.end_stream)

    def put_back(self, stream: Outgoing) -> None:
        """Keep a stream for the next attempt."""
        stream.used_at = time.monotonic()
        with self._lock:
            place = stream.peer, stream.channel
            if not self._closed and place not in self._outgoing:
                self._outgoing[place] = stream
                return
        stream.close()

    # From others ----------------------------------------------------------------------------------------------------

    def incoming(self, peer: int, channel: str) -> list[Incoming]:
        """The streams of a peer that no attempt has yet; they are the caller's until put down."""
        with self._lock:
            return [stream for stream in self._incoming.get((peer, channel), ()) if stream.take_up()]

    def _take(self, peer: int, channel: str, connection: socket.socket) -> None:
        stream, place = Incoming(peer, channel, connection), (peer, channel)
        with self._lock:
            if self._closed:
                return
            self._incoming[place].append(stream)
            crowd = self._incoming[place][:-_MOST_OF_ONE]
        for one in crowd:
            one.hang_up()
        try:
            self._came(channel)
            stream.stay(self._longest_silence, self._patience)
        finally:
            with self._lock:
                self._incoming[place].remove(stream)
                if not self._incoming[place]:
                    del self._incoming[place]

    # Both -----------------------------------------------------------------------------------------------------------

    def drop(self, attempt: Attempt, channel: str) -> None:
        """End what an attempt has used: something of it may still be on its way there."""
        with self._lock:
            out = [p for p, s in self._outgoing.items() if p[1] == channel and s.last == attempt]
            closing = [self._outgoing.pop(place) for place in out]
            ending = [s for p, some in self._incoming.items() if p[1] == channel for s in some if s.last == attempt]
        _end(closing, ending)

    def close(self) -> None:
        """End all; those that an attempt has, it closes."""
        with self._lock:
            self._closed = True
            closing = [*self._outgoing.values()]
            ending = [stream for some in self._incoming.values() for stream in some]
            self._outgoing.clear()
        _end(closing, ending)


def _end(closing: list[Outgoing], ending: list[Incoming]) -> None:
    for out in closing:
        out.close()
    for stream in ending:
        stream.hang_up()
