"""Module docstrings of strategies hold equations in columns: the site shows them as they stand."""

from typing import Any

import griffe

_PLAIN = ("flockstep.strategies.",)


class PlainDocstrings(griffe.Extension):
    """Puts module docstrings whose columns matter into a block of plain text."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Called once a module has been read."""
        if mod.docstring is not None and mod.path.startswith(_PLAIN):
            mod.docstring.value = "```text\n{}\n```".format(mod.docstring.value.replace("``", ""))
