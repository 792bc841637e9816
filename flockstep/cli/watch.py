"""``flockstep watch``: a real run as it goes, on a page of this machine or in the terminal."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from flockstep.cli.support import consoles
from flockstep.live.reader import Reader, journals
from flockstep.live.server import Server
from flockstep.live.state import state
from flockstep.live.terminal import view

HELP = """Watch a real run from its journal: losses, what each node does, who speaks to whom.

Serves a page on this machine only, and says where; on a terminal a table is
shown as well. A run keeps a journal when it is told where:

\b
  flockstep run -n 4 --journal journal train.py     and, beside it,
  flockstep watch journal

\b
or both at once:
  flockstep run -n 4 --watch train.py

The same with torchrun, fs.launch or anything else that starts nodes: set
FLOCKSTEP_JOURNAL=journal. Of a run that is over, its end is shown.
"""

# How often the table is drawn anew.
_GLANCE = 0.5

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the nodes keep their journals.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0 takes a free one.")]
Terminal = Annotated[bool, typer.Option("--terminal", help="No page, only the table; leaves when the run has ended.")]
Once = Annotated[bool, typer.Option("--once", help="Print the table as it is now, and leave.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in this machine's browser.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def watch(
    folder: Folder,
    port: Port = 0,
    terminal: Terminal = False,
    once: Once = False,
    open_page: Open = False,
    debug: Debug = False,
) -> None:
    """Watch a real run."""
    with consoles.plain_errors(debug=debug):
        if not folder.is_dir():
            raise ValueError(
                f"there is no folder {str(folder)!r}: start the run with `flockstep run --journal {folder} ...`, "
                f"or with FLOCKSTEP_JOURNAL={folder}"
            )
        try:
            reader = Reader(folder)
            if once:
                consoles.results().print(view(_now(reader), str(folder)))
            elif terminal:
                _follow(lambda: _now(reader), folder, until_the_end=True)
            else:
                _serve(folder, port, open_page)
        except KeyboardInterrupt:
            # The way to leave: no failure.
            consoles.messages().print("No longer watching.")


def _serve(folder: Path, port: int, open_page: bool) -> None:
    with Server(folder, port=port) as server:
        waits = "" if journals(folder) else " (no node has written there yet)"
        # Not wrapped: somebody may wait for the address.
        consoles.results().print(f"Watching {folder}{waits}: {server.address}", markup=False, soft_wrap=True)
        if open_page:
            webbrowser.open(server.address)
        _follow(lambda: server.state(window=_GLANCE), folder, until_the_end=False)


def _follow(look: Callable[[], dict[str, Any]], folder: Path, *, until_the_end: bool) -> None:
    """The table, drawn anew until the run has ended or somebody leaves; where nothing can be redrawn, only its end."""
    console = consoles.results()
    live = Live(console=console, auto_refresh=False) if consoles.is_live(console) else None
    with live or nullcontext():
        while True:
            # Where there is no table to draw and no end to wait for, the page alone reads.
            now = look() if live or until_the_end else {}
            if live:
                live.update(view(now, str(folder)), refresh=True)
            if until_the_end and now["ended"]:
                break
            time.sleep(_GLANCE)
    if live is None:
        console.print(view(now, str(folder)))


def _now(reader: Reader) -> dict[str, Any]:
    return state(reader.look(), reader.clock(), window=_GLANCE)
