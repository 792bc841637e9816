"""The command line: ``flockstep``, one file per command."""

from __future__ import annotations

import platform
from typing import Annotated

import torch
import typer

import flockstep
from flockstep.cli import a2c, compare, demo, doctor, keys, lda, run, simulate, watch

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
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", help=demo.HELP)(demo.demo)
app.command("simulate", help=simulate.HELP)(simulate.simulate)
app.command("compare", help=compare.HELP)(compare.compare)
# Whatever follows the script's name belongs to the script.
app.command("run", help=run.HELP, context_settings={"allow_interspersed_args": False})(run.run)
app.command("watch", help=watch.HELP)(watch.watch)
app.command("doctor", help=doctor.HELP)(doctor.doctor)
app.add_typer(keys.app, name="keys")
app.add_typer(lda.app, name="lda")
app.command("a2c", help=a2c.HELP)(a2c.a2c)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flockstep {flockstep.__version__} (torch {torch.__version__}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the versions and leave."),
    ] = False,
) -> None:
    """Run before every command; the options of the whole program live here."""
