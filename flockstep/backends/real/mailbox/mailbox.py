"""A node's mailbox: it answers questions, asks them, and carries letters.

Questions (``ask``) run a handler on the other side and bring its reply; letters (``send``) wait there to be taken. Both
are calls that the other side acknowledges, so that whoever dies in the middle is noticed by whoever called.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from flockstep.backends.real.mailbox.client import Calls, Connections
from flockstep.backends.real.mailbox.http import Deadline
from flockstep.backends.real.mailbox.letters import Full, Letters
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.memory import Buffers, Staging
from flockstep.backends.real.mailbox.request_handler import Failed, RequestHandler
from flockstep.backends.real.mailbox.wire import Frame, Kind, Refused, topic_bytes
from flockstep.backends.real.membership.former_life import FormerLife
from flockstep.backends.real.membership.members import Members
from flockstep.backends.real.security.keys import Keys, name_of
from flockstep.errors import LostPeer
from flockstep.message import NOTHING, Message
from flockstep.node import Handler

T = TypeVar("T")
_GLANCE = 0.1


class Busy(Failed):
    """Another handler runs, and does not end: the connection stays good."""


class Mailbox:
    """One node's."""

    def __init__(
        self,
        run: bytes,
        members: Members,
        limits: Limits,
        *,
        keys: Keys | None,
        find: Callable[[int], str | None] = lambda rank: None,
    ) -> None:
        self._run, self.members, self._limits, self._find = run, members, limits, find
        self._rank, self._changed = members.me.rank, members.changed
        self.handling = threading.Lock()
        """Held while a handler runs."""
        self._handlers: dict[str, Handler] = {}
        self._letters = Letters(members, limits, self._carry)
        self.hear: Callable[[int, int, Message], None] = self._hears_nothing
        """Told of every word, on the thread of its connection: it must not wait."""
        self._answering: dict[threading.Thread, str] = {}
        self._closed = False
        self._take_stream: Callable[[int, str, socket.socket], None] | None = None
        self._end_streams: Callable[[], None] = lambda: None
        buffers, staging = Buffers(), Staging()
        context = None if keys is None else keys.client_context()
        self._connections = Connections(context, connect=limits.connect, idle=limits.idle)
        self._calls = Calls(self._connections, buffers, staging)
        self._former_life = FormerLife(run, members, keys, limits.connect)
        self.desk = RequestHandler(
            run, members, limits, self._take, self._stream, buffers=buffers, staging=staging, secured=keys is not None
        )

    # Questions --------------------------------------------------------------------------------------------------

    def answer(self, topic: str, handler: Handler) -> None:
        """Let a handler answer from now on."""
        topic_bytes(topic)
        with self._changed:
            self._handlers[topic] = handler
            self._changed.notify_all()

    def ask(self, peer: int, topic: str, message: Message, seconds: float | None = None) -> Message:
        """Block until the reply is here; LostPeer names whoever gave none, and why."""
        topic_bytes(topic)
        return self._call(Kind.ASK, peer, topic, message, seconds or self._limits.reply, f"ask({topic!r})")

    def open_stream(self, peer: int, channel: str) -> socket.socket:
        """A connection to a peer that only this node writes to, for one channel; LostPeer as for ``ask``."""
        hello = Message.of_bytes(channel.encode())
        return self._reach(
            Kind.STREAM, peer, "", hello, self._limits.reply, f"opening {channel!r}", self._calls.open, self.end_stream
        )

    def end_stream(self, connection: socket.socket) -> None:
        """Close what ``open_stream`` gave."""
        self._calls.end(connection)

    def take_streams(self, take: Callable[[int, str, socket.socket], None], end: Callable[[], None]) -> None:
        """From now on, ``take(peer, channel, connection)`` has what others open, in the thread of the connection, which
        it closes when ``take`` returns; ``end`` is called when this mailbox is closed."""
        with self._changed:
            self._take_stream, self._end_streams = take, end
            self._changed.notify_all()

    def _stream(self, sender: int, message: Message) -> Callable[[socket.socket], None]:
        """What is to be done with a stream that somebody opens."""
        try:
            channel = message.to_bytes().decode()
        except UnicodeDecodeError:
            raise Refused("a channel's name is not UTF-8") from None
        with self._changed:
            found = self._changed.wait_for(lambda: self._take_stream or self._closed, self._limits.early)
            take = self._take_stream
        if not found or take is None or self._closed:
            raise Refused(f"node {self._rank} takes no streams", 404)
        return lambda connection: take(sender, channel, connection)

    def knock(self, peer: int) -> None:
        """Ask for a sign of life."""
        self._call(Kind.KNOCK, peer, "", NOTHING, self._limits.knock, "a knock")

    def tell(self, peer: int, message: Message, seconds: float) -> None:
        """Bring a short word, which no handler answers and which waits for none; LostPeer if that takes too long."""
        self._call(Kind.WORD, peer, "", message, seconds, "a word")

    def _hears_nothing(self, peer: int, incarnation: int, message: Message) -> None:
        raise Refused(f"node {self._rank} takes no part in elastic rounds (yet)", 404)

    def _call(
        self,
        kind: Kind,
        peer: int,
        topic: str,
        message: Message,
        seconds: float,
        verb: str,
    ) -> Message:
        return self._reach(kind, peer, topic, message, seconds, verb, self._calls.call)

    def _reach(
        self,
        kind: Kind,
        peer: int,
        topic: str,
        message: Message,
        seconds: float,
        verb: str,
        talk: Callable[[str, str, Frame, Message, Callable[[set[str]], str], Deadline], tuple[Frame, T, str]],
        drop: Callable[[T], None] = lambda unfit: None,
        again_until: Deadline | None = None,
    ) -> T:
        """What ``talk`` has brought, from whom it should be; ``drop`` gets what came from somebody else."""
        deadline, me = again_until or Deadline(seconds), self.members.me
        frame = Frame.of(kind, self._run, me.rank, me.incarnation, topic, message)
        address = None
        try:
            address = self._address(peer, deadline)
            replied, reply, peers = talk(address, name_of(peer), frame, message, self.members.gossip, deadline)
            try:
                self._check(replied, peer, address)
            except Refused:
                drop(reply)
                # What it told with this goes unheard, and would not be told again on the same connection.
                self._connections.forget(address)
                raise
            self.members.learn(peers, peer)
        except Refused as refused:
            if again_until is None and self._former_life.gives_way(refused, me, deadline):
                # It was refused unread: nothing is done twice.
                return self._reach(kind, peer, topic, message, seconds, verb, talk, drop, deadline)
            if address is not None:
                self.members.not_at(peer, address)
            raise self._lost(peer, verb, f"it refused: {refused.reason}") from refused
        except (OSError, ValueError) as error:
            why = f"no reply in {seconds:g} s" if isinstance(error, TimeoutError) else str(error)
            self._give_up(peer, address, why)
            raise self._lost(peer, verb, why) from error
        self.members.heard(peer)
        return reply

    def _check(self, replied: Frame, peer: int, address: str) -> None:
        """Whether a reply is one, of this run, and of whom it should be."""
        if replied.kind is not Kind.REPLY:
            raise Refused(f"what came back from {address} is no reply")
        if replied.run != self._run:
            raise Refused(f"this is run {self._run.hex()}, the reply is of run {replied.run.hex()}")
        if replied.sender != peer:
            raise Refused(f"node {replied.sender} answers at {address}")
        if replied.incarnation < (newest := self.members.incarnation(peer)):
            raise Refused(
                f"node {peer} was started anew as incarnation {newest}; "
                f"the reply is of an older one, {replied.incarnation}"
            )

    def _give_up(self, peer: int, address: str | None, why: str) -> None:
        if address is not None:
            self._connections.forget(address)
        # Unless it was started anew meanwhile: then the one that was lost is not the one that is meant now.
        if not self._closed and address == self.members.address(peer):
            self.members.lose(peer, why)
        if address is not None:
            self.members.not_at(peer, address)

    def _address(self, peer: int, deadline: Deadline) -> str:
        while (address := self.look_up(peer)) is None:
            with self._changed:
                if self._closed:
                    raise ConnectionError("this mailbox is closed")
                # Somebody may tell, or the store may know by then.
                self._changed.wait(min(0.01, deadline.left()))
        return address

    def look_up(self, peer: int) -> str | None:
        """Where a peer's mailbox is, as far as anybody knows."""
        if self.members.address(peer) is None or peer in self.members.lost():
            line = self._find(peer)
            if line is not None:
                self.members.learn(line)
        return self.members.address(peer)

    # Letters ----------------------------------------------------------------------------------------------------

    def send(self, peer: int, message: Message) -> None:
        """Queue a letter; LostPeer where a peer has taken none for so long that no more may wait."""
        self._letters.send(peer, message)

    def receive(self, peer: int) -> Message:
        """Block until the next letter of a peer is here."""
        return self._letters.receive(peer)

    def _carry(self, peer: int, message: Message) -> None:
        try:
            self._call(Kind.SEND, peer, "", message, self._limits.timeout, "send")
        except LostPeer as lost:
            if isinstance(lost.__cause__, Refused) and lost.__cause__.status == Full.STATUS:
                raise Full(lost.__cause__.reason) from lost
            raise

    # ------------------------------------------------------------------------------------------------------------

    def _take(self, frame: Frame, message: Message) -> Message:
        """What the desk received, by kind; the reply."""
        if frame.kind is Kind.SEND:
            self._letters.deliver(frame.sender, message)
        if frame.kind is Kind.WORD:
            self.hear(frame.sender, frame.incarnation, message)
        if frame.kind is not Kind.ASK:
            return NOTHING
        with self._changed:
            found = self._changed.wait_for(lambda: frame.topic in self._handlers or self._closed, self._limits.early)
            if not found or self._closed:
                raise Refused(f"node {self._rank} has no handler for {frame.topic!r}", 404)
        try:
            with self._turn(frame):
                # Looked up here: the one that answered when the question came may have been replaced since.
                reply = self._handlers[frame.topic](frame.sender, message)
            if not isinstance(reply, Message):
                raise TypeError(f"a handler must return a Message, got {type(reply).__name__}")
            return reply
        except Busy:
            raise
        except Exception as error:
            raise Failed(f"node {self._rank} failed, {type(error).__name__}: {error}") from error

    @contextmanager
    def _turn(self, frame: Frame) -> Iterator[None]:
        """This thread's turn to handle something; Busy where it does not come while anybody waits for the answer."""
        deadline = Deadline(self._limits.reply)
        # A little at a time: nobody can wake one who waits for a lock, and behind a handler that hangs it never comes.
        while not self.handling.acquire(timeout=_GLANCE):
            if self._closed or deadline.is_over:
                raise Busy(f"node {self._rank} is busy with another question, and had no time for {frame.topic!r}")
        me = threading.current_thread()
        self._answering[me] = f"{frame.topic!r}, asked by node {frame.sender}"
        try:
            yield
        finally:
            self._answering.pop(me, None)
            self.handling.release()

    def answering(self, thread: threading.Thread) -> str | None:
        """Which handler runs on a thread, if one does."""
        return self._answering.get(thread)

    def _lost(self, peer: int, verb: str, why: str) -> LostPeer:
        return LostPeer(f"node {self._rank} lost node {peer} in {verb}: {why}", rank=self._rank)

    def serve(self, connection: socket.socket) -> None:
        """Attend to one connection until it ends."""
        self.desk.attend(connection)

    def close(self) -> None:
        """Ask nothing more, and answer nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._end_streams()
        self._connections.close()
        self._letters.close()
