"""Which numbers a member has promised to nodes that are about to come.

A newcomer asks every member for one and the same number, lowest member first, and has it when none has said no: of two
who ask for one, the lowest living member hears one first, and the other turns to the next number. What was promised
does not end, since who asks may load data for an hour before it is there.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass

from flockstep.backends.real.mailbox.wire import MOST_RANKS, Refused
from flockstep.backends.real.membership.member_line import Member
from flockstep.backends.real.membership.members import Members

ADDRESS = b"POST /number/"
_ASKED = re.compile(rb"POST /number/(\d{1,7})/([0-9a-f]{32})")
_MOST_PROMISES = 10_000


class Numbers:
    """One member's promises."""

    def __init__(self, run: bytes, members: Members) -> None:
        self._run, self._members = run.hex(), members
        self._lock = threading.Lock()
        self._promised: dict[int, str] = {}

    def answer(self, target: bytes) -> str:
        """Whether whoever asks may have a number, and all that it should know for its next try."""
        asked = _ASKED.fullmatch(target)
        if asked is None or int(asked[1]) >= MOST_RANKS:
            raise Refused("a number is asked for as POST /number/NUMBER/TOKEN, with 32 hexadecimal digits", 404)
        number, token = int(asked[1]), asked[2].decode()
        peers = self._members.everyone()
        taken = {*range(self._members.size), *(Member.read(line).rank for line in peers.split(","))}
        with self._lock:
            granted = number not in taken and self._promised.get(number, token) == token
            if granted:
                if len(self._promised) >= _MOST_PROMISES:
                    raise Refused(f"{_MOST_PROMISES} numbers are promised already", 507)
                self._promised[number] = token
            said = {"run": self._run, "granted": granted, "size": self._members.size, "peers": peers}
            return json.dumps(said | {"promised": list(self._promised.items())})

    def learn(self, promised: dict[int, str]) -> None:
        """Take over what other members have promised; of two who were promised one number, the known one stays."""
        with self._lock:
            self._promised = promised | self._promised


@dataclass(frozen=True)
class Verdict:
    """One member's answer, as it was read."""

    run: str
    granted: bool
    size: int
    peers: tuple[Member, ...]
    promised: dict[int, str]

    @classmethod
    def read(cls, text: bytes) -> Verdict:
        """From JSON; ValueError where it is not one."""
        try:
            said = json.loads(text)
            peers = tuple(Member.read(line) for line in str(said["peers"]).split(","))
            promised = {int(number): str(token) for number, token in said["promised"]}
            return cls(str(said["run"]), said["granted"] is True, int(said["size"]), peers, promised)
        except (KeyError, TypeError, OverflowError, RecursionError):
            raise ValueError("this is no answer about a number") from None
