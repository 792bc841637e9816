"""A run that lets itself be watched: where its nodes keep journals, and the page beside it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flockstep.cli.support import consoles

_VARIABLE = "FLOCKSTEP_JOURNAL"


@contextmanager
def watching(page: bool, journal: Path | None, *, fresh: bool) -> Iterator[None]:
    """Inside, nodes that are started keep journals, if anybody wants them, and the page is there if it was asked for.

    ``fresh``: all nodes begin now, so that what an earlier run left in the folder can only mislead.
    """
    if not page and journal is None:
        yield
        return
    asked = os.environ.get(_VARIABLE)
    journal = journal or (Path(asked) if asked else None)
    with ExitStack() as stack:
        folder = Path(journal or stack.enter_context(tempfile.TemporaryDirectory(prefix="flockstep-")))
        _prepare(folder, fresh)
        stack.callback(_set, asked)
        _set(str(folder.resolve()))
        if not page:
            yield
            return
        # Here, since a run that nobody watches needs no server.
        from flockstep.live.server import Server

        server = stack.enter_context(Server(folder))
        kept = f"its journal stays in {folder}" if journal else "its journal goes with it; --journal FOLDER keeps it"
        # Beside the script's own output, which belongs to whoever reads that.
        line = f"Watch this run at {server.address} ({kept})."
        consoles.messages().print(line, markup=False, soft_wrap=True)
        yield
        server.let_pages_see_the_end()


def _set(folder: str | None) -> None:
    """What nodes read, or what was there before."""
    if folder is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = folder


def _prepare(folder: Path, fresh: bool) -> None:
    from flockstep.live.reader import journals

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--journal must be a folder, {str(folder)!r} is none")
    if fresh and journals(folder):
        raise ValueError(f"--journal {str(folder)!r} holds the journals of an earlier run; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
