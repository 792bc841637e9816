"""Where words go: results to standard output, progress and errors to standard error, errors in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from flockstep.errors import FlockstepError

# A file or a pipe has no width of its own: enough for the widest table of ours.
_WIDTH_ELSEWHERE = 120

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
"""Exit codes: the run failed; it was asked for wrongly; somebody pressed Ctrl-C."""


def results() -> Console:
    """Standard output, for tables and paths."""
    return _console(stderr=False)


def messages() -> Console:
    """Standard error, for progress and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_ELSEWHERE
    return console


def is_live(console: Console) -> bool:
    """Whether what was shown can be redrawn."""
    return console.is_terminal and not console.is_dumb_terminal


def complain(sentence: str) -> None:
    """One red sentence."""
    # Not as markup: a message may hold brackets of its own. Wrapped by the terminal, so that it can be searched for.
    messages().print(sentence, style="red", markup=False, soft_wrap=True)


@contextmanager
def plain_errors(*, debug: bool) -> Iterator[None]:
    """Whatever goes wrong inside is told in one sentence and an exit code; ``debug`` shows the traceback as well."""
    try:
        yield
    except KeyboardInterrupt:
        complain("Stopped by Ctrl-C.")
        raise typer.Exit(INTERRUPTED) from None
    except (FlockstepError, OSError, ValueError, TypeError) as error:
        if debug:
            raise
        complain(_sentence(error))
        raise typer.Exit(MISUSED if isinstance(error, ValueError | TypeError) else FAILED) from None


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    return str(error)
