"""``flockstep keys``: the certificates by which the nodes of a run know each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from flockstep.backends.real.security import keys
from flockstep.cli.support import consoles, options
from flockstep.errors import nodes_named

HELP = """Make and look at the keys by which nodes on several machines know each other.

With keys, messages between nodes are encrypted (TLS 1.3), and both ends must
show a certificate of this run's own authority: nobody else gets in.

\b
[bold]Once[/bold], on a machine you trust:
  flockstep keys create DIR --nodes 4

\b
[bold]Then copy[/bold], over a channel you trust, such as scp or rsync:
  DIR/node-0000 to the machine of node 0, DIR/node-0001 to that of node 1, ...
  DIR/authority to none: whoever has it can make nodes of this run.
A machine that runs several nodes keeps their folders side by side in one DIR.

\b
[bold]Use them[/bold], on every machine:
  flockstep run --keys DIR train.py
which is the same as FLOCKSTEP_KEYS=DIR in the environment. There, DIR is the
folder that holds node-0000 and so on, or a single node's own folder. Give
--node-rank as well, so that every machine runs the nodes whose keys it has.

\b
[bold]Look after them:[/bold]
  flockstep keys show DIR
"""

CREATE_HELP = """Make a run's authority and one folder of keys per node.

Where DIR has an authority already, only the nodes that are missing are added:
ask for more nodes to let more in, or delete the folder of one node to make it
new keys. A key that is there is never overwritten.

\b
[bold]Examples[/bold]
  flockstep keys create keys --nodes 4
  flockstep keys create keys --nodes 6 --days 30    (adds nodes 4 and 5)

\b
[bold]Then[/bold]
  copy keys/node-0000 to the machine of node 0, and so on; keys/authority to none
  flockstep run --keys keys train.py    (sets FLOCKSTEP_KEYS=keys)
"""

SHOW_HELP = """Show until when keys are valid, and whether they would work.

DIR is what `flockstep keys create` made, or one node's own folder on its
machine. Ends with exit code 1 where something is wrong.
"""

app = typer.Typer(help=HELP, no_args_is_help=True, add_completion=False)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Where the keys lie.", show_default=False)]
Nodes = Annotated[int, typer.Option(help="How many nodes the run has, or shall have.", show_default=False)]
Days = Annotated[int, typer.Option(help="How long the new certificates are valid.")]


@app.command("create", help=CREATE_HELP)
def create(folder: Folder, nodes: Nodes, days: Days = 365, debug: options.Debug = False) -> None:
    """Make keys, or those that are missing."""
    with consoles.plain_errors(debug=debug):
        made = keys.create(folder, nodes, days=days)
        line = (
            f"Made keys of {nodes_named(made)} in {folder}." if made else f"{folder} has keys of all {nodes} already."
        )
        copy = f"Copy each node's folder to its machine, and {folder / 'authority'} to none."
        consoles.results().print(f"{line}\n{copy}", markup=False, soft_wrap=True)


@app.command("show", help=SHOW_HELP)
def show(folder: Folder, debug: options.Debug = False) -> None:
    """Show keys, and what is wrong with them."""
    with consoles.plain_errors(debug=debug):
        ranks = keys.ranks_in(folder)
        if not ranks:
            raise ValueError(
                f"there are no keys in {folder}\n  make them with `flockstep keys create {folder} --nodes N`"
            )
        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("node", "valid until", "days left", "permissions"):
            drawn.add_column(name, justify="left" if name == "permissions" else "right", no_wrap=True)
        wrong = []
        for rank in ranks:
            home = keys.home_of(folder, rank)
            drawn.add_row(str(rank), *_cells(home if home.is_dir() else folder, keys.NODE_FILES, "node.pem"))
            wrong += _complaints(keys.Keys.find, folder, rank)
        if (home := folder / "authority").is_dir():
            drawn.add_row("authority", *_cells(home, keys.AUTHORITY_FILES, "ca.pem"))
            wrong += _complaints(keys.pair, home, keys.AUTHORITY_FILES)
        consoles.results().print(drawn)
    for sentence in wrong:
        consoles.complain(sentence)
    if wrong:
        raise typer.Exit(consoles.FAILED)


def _complaints(look: Callable[..., object], *where: object) -> list[str]:
    try:
        look(*where)
    except ValueError as error:
        return [str(error)]
    return []


def _cells(home: Path, files: Sequence[str], certificate: str) -> list[str]:
    """As much as can be said, however bad the keys are: what is wrong is told below the table."""
    try:
        ends = keys.read(home / certificate).not_valid_after_utc
    except ValueError:
        until = ["-", "-"]
    else:
        until = [f"{ends:%Y-%m-%d %H:%M} UTC", str((ends - datetime.now(UTC)).days)]
    return [*until, "open to others" if keys.too_open(home, files) else "ok"]
