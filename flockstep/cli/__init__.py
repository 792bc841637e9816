"""The command line: ``flockstep``, one file per command."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

import flockstep
from flockstep.cli.commands import HELP_NAMES, Commands

_HELP = """
Train in a flock, not in lockstep: PyTorch training on machines that are far
apart, uneven or unreliable.

\b
[bold]The first thing to try[/bold] (two minutes, no files and no network needed):
  flockstep demo

\b
[bold]Then ask what your own machines would do:[/bold]
  flockstep compare --link "20 Mbit/s" --straggler 3:4x   a page to show
  flockstep simulate DataParallel "LocalSGD(period=8)" --link "20 Mbit/s"
  flockstep simulate --help

\b
[bold]And train your own script on several processes:[/bold]
  flockstep run -n 4 train.py
  flockstep run -n 4 --watch train.py     and look at it while it trains

\b
[bold]Two applications, on all cores and on several machines:[/bold]
  flockstep lda fit my-texts/ --topics 50 --out my-topics
  flockstep a2c CartPole-v1 --threads 2

\b
[bold]Something is wrong between machines?[/bold]
  flockstep doctor
"""

app = typer.Typer(
    name="flockstep",
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    # With --debug a user wants the traceback as Python writes it, to read or to paste.
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
    cls=Commands,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as version_of

        typer.echo(
            f"flockstep {flockstep.__version__} (torch {version_of('torch')}, Python {platform.python_version()})"
        )
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the versions and leave."),
    ] = False,
) -> None:
    """Run before every command; the options of the whole program live here."""
