"""All rows, by name."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from benchmarks.mailbox import boxes, gloo, sockets
from benchmarks.mailbox.ways import Caller, Place, Way, missing

BARE, BARE_TLS = "bare socket", "bare TLS socket"
BOX, BOX_TLS = "mailbox", "mailbox, mutual TLS"


def _serve_zeromq(place: Place, body: Tensor) -> str:
    # Here, because it need not be installed.
    from benchmarks.mailbox import zeromq

    return zeromq.serve(place, body)


def _connect_zeromq(place: Place, line: str) -> Caller:
    from benchmarks.mailbox import zeromq

    return zeromq.QueueCaller(place, line)


WAYS = {
    BARE: Way(partial(sockets.serve, tls=False), partial(sockets.BareCaller, tls=False), BARE),
    BOX: Way(partial(boxes.serve, tls=False), partial(boxes.BoxCaller, tls=False), BARE),
    BARE_TLS: Way(partial(sockets.serve, tls=True), partial(sockets.BareCaller, tls=True), BARE_TLS),
    BOX_TLS: Way(partial(boxes.serve, tls=True), partial(boxes.BoxCaller, tls=True), BARE_TLS),
    "gloo": Way(gloo.serve, gloo.GlooCaller, BARE),
    "pyzmq": Way(_serve_zeromq, _connect_zeromq, BARE, missing("zmq", "pyzmq")),
}
