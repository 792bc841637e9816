"""The mailbox's rows: ``ask`` of a topic, with and without keys."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.mailbox.ways import CLIENT, SERVER, Place
from flockstep.backends.real.mailbox.endpoint import Endpoint, ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.security.keys import Keys
from flockstep.message import Message

RUN = b"benchmarks.mailb"
TIMEOUT = 60.0
Find = Callable[[int], str | None]


def raw(data: Tensor) -> Message:
    """Bytes as they are."""
    return Message(data, "raw", tuple(data.shape), torch.uint8)


NOTHING = raw(torch.empty(0, dtype=torch.uint8))


def house(place: Place, rank: int, find: Find = lambda rank: None, *, tls: bool = False) -> Endpoint:
    """A mailbox of one of two nodes; ``find`` tells who speaks first where the other is."""
    site = ListenOn(place.host, keys=Keys.find(place.folder, rank) if tls else None, insecure=True)
    return open_endpoint(RUN, rank, 2, Limits(TIMEOUT), site, find)


def serve(place: Place, body: Tensor, *, tls: bool) -> str:
    """Answer as anybody's handlers would; the house stands for as long as its threads do."""
    box, prepared = house(place, SERVER, tls=tls).box, raw(body)
    box.answer("body", lambda sender, message: prepared)
    box.answer("echo", lambda sender, message: message)
    return str(box.members.me)


class BoxCaller:
    """The node that asks."""

    def __init__(self, place: Place, line: str, *, tls: bool) -> None:
        self._house = house(place, CLIENT, lambda rank: line, tls=tls)

    def pull(self) -> Tensor:
        """The body."""
        return self._house.box.ask(SERVER, "body", NOTHING).data

    def echo(self, request: Tensor) -> Tensor:
        """The same 1 kB."""
        return self._house.box.ask(SERVER, "echo", raw(request)).data

    def close(self) -> None:
        """Close the house."""
        self._house.close()
