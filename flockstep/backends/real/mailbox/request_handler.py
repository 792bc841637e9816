"""The answering side of a connection: who may speak, what is accepted, and what is said to the rest."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version

from flockstep.backends.real.mailbox.client import read_frame, read_message
from flockstep.backends.real.mailbox.http import PATH, STREAM_PATH, ClosedEarly, Deadline, Exchange, Head, Reader, send
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.memory import Buffers, Staging
from flockstep.backends.real.mailbox.wire import VERSION, Frame, Kind, Refused
from flockstep.backends.real.membership.members import Members
from flockstep.backends.real.membership.numbers import ADDRESS, Numbers
from flockstep.backends.real.metrics import CONTENT_TYPE
from flockstep.backends.real.security.keys import rank_of
from flockstep.message import Message

_DRAIN_BYTES, _DRAIN_SECONDS = 2**20, 1.0
_LONGEST_CHANNEL = 4096


class Failed(Refused):
    """A handler raised: the asker is told, and the connection stays good."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, 500)


class RequestHandler:
    """Reads requests, checks them, and gives them to ``take``."""

    def __init__(
        self,
        run: bytes,
        members: Members,
        limits: Limits,
        take: Callable[[Frame, Message], Message],
        stream: Callable[[int, Message], Callable[[socket.socket], None]],
        *,
        buffers: Buffers,
        staging: Staging,
        secured: bool,
    ) -> None:
        self._run, self._members, self._limits, self._take = run, members, limits, take
        self._stream = stream
        self._buffers, self._staging, self._secured = buffers, staging, secured
        self.numbers = Numbers(run, members)
        self.doubt: Callable[[int], None] = lambda rank: None
        """Told of a node whose connection ended: it may have died."""
        self.know: Callable[[], None] = lambda: None
        """Told that the connection which this thread attends to is a node's of this run."""
        self.metrics: Callable[[], str] | None = None
        """What is shown at ``/metrics``, where there is a node to tell."""

    def attend(self, connection: socket.socket) -> None:
        """Answer request after request until the other side hangs up, or says something that makes no sense."""
        identity = self._identity(connection)
        speaker: int | None = None
        shown: set[str] = set()
        try:
            last = False
            while not last:
                exchange = Exchange(connection, client=False)
                try:
                    # Nodes that connect say something at once.
                    patience = self._limits.connect if speaker is None else self._limits.silence
                    head = exchange.read(Deadline(patience))
                    last = exchange.last
                    if head.target == b"GET /about" and not head.length:
                        self._tell(exchange, self._about(), b"application/json")
                        continue
                    if head.target == b"GET /metrics" and not head.length and self.metrics is not None:
                        self._tell(exchange, self.metrics(), CONTENT_TYPE)
                        continue
                    if head.target.startswith(ADDRESS) and not head.length:
                        self._tell(exchange, self.numbers.answer(head.target), b"application/json")
                        continue
                    speaker, stream = self._serve(exchange, head, identity, shown)
                    if stream is not None:
                        # From here on it is no HTTP any more.
                        stream(connection)
                        return
                except Failed as failed:
                    self._say(exchange, failed, close=False)
                except Refused as refused:
                    self._say(exchange, refused, close=True)
                    return
        except ClosedEarly:
            pass
        finally:
            if speaker is not None:
                self.doubt(speaker)

    def _serve(
        self, exchange: Exchange, head: Head, identity: int | None, shown: set[str]
    ) -> tuple[int, Callable[[socket.socket], None] | None]:
        """Who spoke, and where the connection goes if it is to be a stream now."""
        if head.target not in (b"POST " + PATH, b"POST " + STREAM_PATH):
            raise Refused(f"there is nothing at {head.target[:80]!r}", 404)
        reader = Reader(exchange.connection, head.rest, Deadline(self._limits.timeout))
        frame = read_frame(head, reader)
        self._admit(frame, identity)
        if (frame.kind is Kind.STREAM) != (head.target == b"POST " + STREAM_PATH):
            raise Refused(f"{head.target.decode()} is not for messages of this kind")
        if frame.kind is Kind.STREAM and frame.length > _LONGEST_CHANNEL:
            raise Refused(f"a channel's name has at most {_LONGEST_CHANNEL} bytes", 413)
        self.know()
        message = read_message(frame, reader, self._buffers)
        try:
            self._members.learn(head.peers, frame.sender)
        except ValueError as error:
            raise Refused(str(error)) from None
        self._members.heard(frame.sender)
        stream = self._stream(frame.sender, message) if frame.kind is Kind.STREAM else None
        reply = self._take(frame, message)
        del message
        self._reply(exchange, frame.topic, reply, shown)
        return frame.sender, stream

    def _admit(self, frame: Frame, identity: int | None) -> None:
        """Whether a message may be read at all: of this run, of who it says, of the newest incarnation of that."""
        if frame.kind is Kind.REPLY:
            raise Refused("a reply to nothing")
        if frame.run != self._run:
            raise Refused(f"this is run {self._run.hex()}, the message is of run {frame.run.hex()}", 409)
        if self._secured and identity != frame.sender:
            raise Refused(f"the certificate is node {identity}'s, the message says it is node {frame.sender}'s", 403)
        if frame.sender == self._members.me.rank:
            raise Refused(f"node {frame.sender} is this node itself", 409)
        newest = self._members.incarnation(frame.sender)
        if frame.incarnation < newest:
            raise Refused(
                f"node {frame.sender} was started anew as incarnation {newest}; "
                f"the message is of an older one, {frame.incarnation}",
                409,
                # So that it can go on, if that was its own former life.
                peers=self._members.line(frame.sender),
            )

    def _reply(self, exchange: Exchange, topic: str, reply: Message, shown: set[str]) -> None:
        me, deadline = self._members.me, Deadline(self._limits.timeout)
        frame = Frame.of(Kind.REPLY, self._run, me.rank, me.incarnation, topic, reply)
        head = exchange.response(200, frame.body_bytes, self._members.gossip(shown))
        send(exchange.connection, head, frame.pack(reply), self._staging.view(reply.data), deadline)

    def _about(self) -> str:
        me = self._members.me
        about = {
            "protocol": VERSION,
            "flockstep": version("flockstep"),
            "run": self._run.hex(),
            "rank": me.rank,
            "incarnation": me.incarnation,
            "time": time.time(),
            "timeout": self._limits.timeout,
            "size": self._members.size,
            "peers": self._members.everyone(),
            "disbelieved": self._members.disbelieved,
        }
        return json.dumps(about)

    def _tell(self, exchange: Exchange, text: str, kind: bytes) -> None:
        body = text.encode()
        exchange.connection.settimeout(self._limits.timeout)
        exchange.connection.sendall(exchange.response(200, len(body), "", kind=kind) + body)

    def _say(self, exchange: Exchange, refused: Refused, *, close: bool) -> None:
        body = refused.reason.encode(errors="replace")[:2000]
        connection = exchange.connection
        # Whoever is refused may have hung up already.
        with suppress(OSError):
            connection.settimeout(self._limits.timeout if not close else _DRAIN_SECONDS)
            connection.sendall(exchange.response(refused.status, len(body), refused.peers, close=close) + body)
            if close:
                # Closing on unread bytes would reset the connection, and the reason with it.
                socket.socket.shutdown(connection, socket.SHUT_WR)
                drained, deadline = 0, Deadline(_DRAIN_SECONDS)
                while drained < _DRAIN_BYTES and (data := connection.recv(65536)):
                    drained += len(data)
                    connection.settimeout(deadline.left())

    def _identity(self, connection: socket.socket) -> int | None:
        if not isinstance(connection, ssl.SSLSocket):
            return None
        try:
            return rank_of(connection.getpeercert() or {})
        except ValueError:
            return None
