"""torch's own way: send and receive of a gloo process group."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from datetime import timedelta

import torch
from torch import Tensor

from benchmarks.mailbox.ways import BODY_BYTES, CLIENT, PULL, REQUEST_BYTES, SERVER, Place, request
from flockstep.backends.real.collective import c10d

# The server waits for its next request while other rows have their turns.
_PATIENCE = timedelta(hours=2)


def _group(place: Place, rank: int) -> c10d.Store:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    return c10d.gloo(c10d.FileStore(str(place.folder / "gloo"), 2), rank, 2, _PATIENCE)


def serve(place: Place, body: Tensor) -> str:
    """Become a member of the group once the other is there, too."""

    def answer() -> None:
        group = _group(place, SERVER)
        wanted = torch.empty(REQUEST_BYTES, dtype=torch.uint8)
        # That is what it raises when the other has left.
        with suppress(RuntimeError):
            while True:
                group.recv([wanted], CLIENT, 0).wait()
                group.send([body if wanted[0] == PULL else wanted], CLIENT, 0).wait()

    threading.Thread(target=answer, daemon=True).start()
    return "a file tells"


class GlooCaller:
    """The member that asks."""

    def __init__(self, place: Place, line: str) -> None:
        self._group = _group(place, CLIENT)
        self._body = torch.empty(BODY_BYTES, dtype=torch.uint8)
        self._echo = torch.empty(REQUEST_BYTES, dtype=torch.uint8)
        self._pull = request(PULL)

    def pull(self) -> Tensor:
        """The body."""
        return self._exchange(self._pull, self._body)

    def echo(self, request: Tensor) -> Tensor:
        """The same 1 kB."""
        return self._exchange(request, self._echo)

    def _exchange(self, wanted: Tensor, into: Tensor) -> Tensor:
        self._group.send([wanted], SERVER, 0).wait()
        self._group.recv([into], SERVER, 0).wait()
        return into

    def close(self) -> None:
        """Leave the group."""
        del self._group
