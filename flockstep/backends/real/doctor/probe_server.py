"""The doctor's own mailbox: it answers other doctors, so that there is something to measure.

doctor echo   gives back what it got
doctor push   takes what it got, and gives nothing back
doctor pull   gives as many bytes as asked for
doctor call   connects to the asker's own mailbox, and says whether that worked
"""

from __future__ import annotations

import hashlib
import secrets
import struct
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from flockstep.backends.real.mailbox.endpoint import ListenOn
from flockstep.backends.real.mailbox.identity_query import ask_identity
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.mailbox import Mailbox
from flockstep.backends.real.mailbox.server import Server
from flockstep.backends.real.mailbox.wire import MOST_RANKS, RUN_BYTES, Refused
from flockstep.backends.real.membership.member_line import Member, format_address
from flockstep.backends.real.membership.members import Members
from flockstep.backends.real.security.keys import Keys
from flockstep.backends.real.security.line_signatures import LineSignatures
from flockstep.message import Message

RUN = hashlib.blake2b(b"flockstep doctor", digest_size=RUN_BYTES).digest()
"""The run that all doctors belong to, whatever machine they are on."""
MOST_BYTES = 64_000_000
"""What one doctor sends another at once, at most."""

_COUNT = struct.Struct("<Q")
_SECONDS = struct.Struct("<d")
_NOISE_BLOCK = 1_000_000


class ProbeServer:
    """A mailbox of the doctors' run, open inside a ``with``. It has no heartbeat: patients come and go."""

    def __init__(
        self, rank: int, limits: Limits, site: ListenOn, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self._limits, self._keys, self._tell = limits, site.keys, tell
        self._noise: Tensor | None = None
        context = None if site.keys is None else site.keys.server_context()
        try:
            self._server = Server(site.host, context=context, handshake=limits.connect, port=site.port)
        except OSError as error:
            place = f"{site.host}:{site.port}" if site.port else site.host
            raise OSError(f"cannot listen on {place}: {error.strerror or error}") from None
        self.address = format_address(site.host, self._server.port)
        signatures = None if site.keys is None else LineSignatures(site.keys, RUN)
        members = Members(Member(rank, self.address, time.time_ns()), 0, signatures)
        self.box = Mailbox(RUN, members, limits, keys=site.keys)
        for topic, handler in (
            ("echo", lambda sender, message: message),
            ("push", lambda sender, message: Message.of_bytes(b"")),
            ("pull", self._pull),
            ("call", self._call),
        ):
            self.box.answer(f"doctor {topic}", handler)
        self.box.desk.know = self._server.know
        self._server.start(self.box.serve)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.box.close()
        self._server.close()

    def meet(self, rank: int, address: str, incarnation: int) -> None:
        """Learn where another doctor is."""
        self.box.members.learn(str(Member(rank, address, incarnation)))

    def echo(self, peer: int, count: int) -> None:
        """So many bytes there and back."""
        self.box.ask(peer, "doctor echo", Message(self.noise(count), "doctor", (count,), torch.uint8))

    def push(self, peer: int, count: int) -> None:
        """So many bytes there."""
        self.box.ask(peer, "doctor push", Message(self.noise(count), "doctor", (count,), torch.uint8))

    def pull(self, peer: int, count: int) -> None:
        """So many bytes from there."""
        self.box.ask(peer, "doctor pull", Message.of_bytes(_COUNT.pack(count)))

    def call(self, peer: int) -> str:
        """Whether another doctor can reach this one: empty, or why not."""
        reply = self.box.ask(peer, "doctor call", Message.of_bytes(_SECONDS.pack(self._limits.connect)))
        return reply.to_bytes().decode(errors="replace")

    def noise(self, count: int) -> Tensor:
        """So many bytes that no line can make shorter; made once, since making them takes as long as sending them."""
        if self._noise is None:
            block = torch.frombuffer(bytearray(secrets.token_bytes(_NOISE_BLOCK)), dtype=torch.uint8)
            self._noise = block.repeat(MOST_BYTES // _NOISE_BLOCK)
        return self._noise[:count]

    def _pull(self, sender: int, message: Message) -> Message:
        (count,) = _COUNT.unpack(message.to_bytes())
        if count > MOST_BYTES:
            raise ValueError(f"a doctor sends at most {MOST_BYTES} bytes at once, asked for {count}")
        return Message(self.noise(count), "doctor", (count,), torch.uint8)

    def _call(self, sender: int, message: Message) -> Message:
        (seconds,) = _SECONDS.unpack(message.to_bytes())
        address = self.box.members.address(sender)
        if address is None:
            return Message.of_bytes(b"it does not know where this machine listens")
        try:
            # Not longer than the asker waits, nor than this side would.
            about = ask_identity(address, self._keys, min(max(seconds, 0.0), self._limits.connect))
            why = "" if (about.run, about.rank) == (RUN.hex(), sender) else "another program answers there"
        except Refused as refused:
            why = refused.reason
        except OSError as error:
            why = str(error)
        self._tell(f"{address} was here; {f'it cannot be reached: {why}' if why else 'it can be reached from here'}")
        return Message.of_bytes(why.encode())


def stand_on(host: str, port: int, keys: Keys | None, *, insecure: bool) -> tuple[ListenOn, str]:
    """A site, and what is to be warned of; ValueError where Flockstep would not listen like that."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        site = ListenOn(host, port, keys, insecure)
    return site, "; ".join(str(each.message) for each in caught)


def any_rank() -> int:
    """A number for a doctor without keys who calls; one who listens is 0."""
    return 1 + secrets.randbelow(MOST_RANKS - 1)
