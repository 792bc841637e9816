"""The page of a run, served on loopback. The journals are read only when somebody asks."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from flockstep import pages
from flockstep.live.reader import Reader
from flockstep.live.state import state

LOOPBACK = "127.0.0.1"
_HERE, _SHARED = "flockstep.live.page", "flockstep.pages"
_FILES = {
    "/": ("page.html", _HERE, "text/html"),
    "/page.css": ("page.css", _HERE, "text/css"),
    "/page.js": ("page.js", _HERE, "text/javascript"),
    "/look.css": ("look.css", _SHARED, "text/css"),
    "/theme.js": ("theme.js", _SHARED, "text/javascript"),
    "/charts.js": ("charts.js", _SHARED, "text/javascript"),
    "/timeline.js": ("timeline.js", _SHARED, "text/javascript"),
}
# Everything comes from this server and goes nowhere else. Plotly writes styles of its own into the page.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# A page asks about once a second: one that asked so lately is there to hear how the run ended.
_ATTENTION, _FAREWELL = 4.0, 4.0


class Server:
    """``with Server(folder) as server:`` the page is at ``server.address`` until the end of the block."""

    def __init__(self, folder: str | Path, *, port: int = 0) -> None:
        self.reader = Reader(folder)
        self._reading, self._asked = threading.Condition(), -math.inf
        self._http = _Loopback((LOOPBACK, port), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, name="flockstep watch", daemon=True)

    @property
    def address(self) -> str:
        """What to type into a browser on this machine."""
        return f"http://{LOOPBACK}:{self._http.server_port}/"

    def state(self, window: float | None = None) -> dict[str, Any]:
        """The state of the run now."""
        with self._reading:
            return state(self.reader.look(), self.reader.clock(), window=window)

    def answer(self, window: float | None, known: str) -> bytes:
        """The state as JSON, with a mark of it; nothing where the page knows it already."""
        shown = self.state(window)
        with self._reading:
            self._asked = time.monotonic()
            self._reading.notify_all()
        text = json.dumps(shown)
        mark = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return b"" if mark == known else json.dumps({"mark": mark, **shown}).encode()

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def let_pages_see_the_end(self) -> None:
        """Wait until a page that is open has asked once more: it then shows the last state, not the last but one."""
        with self._reading:
            before = self._asked
            if time.monotonic() - before < _ATTENTION:
                self._reading.wait_for(lambda: self._asked > before, timeout=_FAREWELL)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(_Handler):
            asked = server

        return Handler


class _Loopback(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that ends a connection when it likes is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    asked: Server
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """A file of the page, or the state."""
        if not self._is_for_us():
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"This page is for this machine only.\n")
            return
        parts = urlsplit(self.path)
        if parts.path == "/state.json":
            self._send_state(parse_qs(parts.query))
        elif parts.path == "/plotly.js":
            self._send_plotly()
        elif parts.path in _FILES:
            name, package, kind = _FILES[parts.path]
            self._send(HTTPStatus.OK, f"{kind}; charset=utf-8", pages.file(name, package).encode())
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"There is no such page.\n")

    def _is_for_us(self) -> bool:
        # A foreign page can give its own name this machine's address; its name then stands here, and is refused.
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in (LOOPBACK, "localhost")
        except ValueError:
            return False

    def _send_state(self, query: dict[str, list[str]]) -> None:
        try:
            window = float(query["window"][0]) if "window" in query else None
            if window is not None and not 0 < window < math.inf:
                raise ValueError(window)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"window must be a number of seconds.\n")
            return
        body = self.asked.answer(window, query.get("known", [""])[0])
        self._send(HTTPStatus.OK if body else HTTPStatus.NO_CONTENT, "application/json", body)

    def _send_plotly(self) -> None:
        try:
            script = pages.library("compare").encode()
        except ModuleNotFoundError as missing:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", f"{missing}\n".encode())
        else:
            self._send(HTTPStatus.OK, "text/javascript; charset=utf-8", script, keep=True)

    def _send(self, status: HTTPStatus, kind: str, body: bytes, *, keep: bool = False) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        # Plotly is large and the same at every visit; all else is new each time.
        self.send_header("Cache-Control", "max-age=3600" if keep else "no-store")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # Whoever has closed the page in the meantime wants no answer.
        with suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is for the run."""
