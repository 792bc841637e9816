"""Commands are imported when they are asked for: help and versions then need no torch, which takes seconds."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

_LINES = {
    "demo": "Train a small LSTM on 2 real processes and on 8 virtual nodes, six ways.",
    "simulate": "Run strategies on virtual nodes and a virtual clock, and compare them.",
    "compare": "Compare strategies side by side, and get a page to show to others.",
    "run": "Run your own training script on several processes, one node each.",
    "watch": "Watch a real run from its journal: losses, what each node does, who speaks to whom.",
    "doctor": "Find out what is wrong between machines before a training does.",
    "a2c": "Train an actor-critic (HSA2C) on a gymnasium environment.",
    "keys": "Make and look at the keys by which nodes on several machines know each other.",
    "lda": "Find the topics of a corpus, look at them, and use them on new texts.",
}
"""Of each command the first line of its help; a file of its name has the rest."""
_SETTINGS = {
    # Whatever follows the script's name belongs to the script.
    "run": {"allow_interspersed_args": False},
}
HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class Commands(TyperGroup):
    """All of them, by their names alone."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: _Later(name=name, help=line, callback=None) for name, line in _LINES.items()}


class _Later(TyperCommand):
    """Stands for a command in a list; whoever runs it, or asks for its help, gets the command itself."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return command(str(self.name)).make_context(info_name, args, parent=parent, **extra)


def command(name: str) -> Any:
    """A command, or a group of them, as its file has it."""
    module = import_module(f"flockstep.cli.{name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
        settings = {**HELP_NAMES, **_SETTINGS.get(name, {})}
        app.command(name, help=module.HELP, context_settings=settings)(getattr(module, name))
    made = get_command(app)
    made.name = name
    return made
