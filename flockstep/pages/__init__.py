"""What our web pages share: the plotting library, one look, drawing functions, and a way to put data in safely.

A page is one file. It holds all it shows, the plotting library too (plotly, some 5 MB), and forbids itself to load
anything. Whatever comes from a user is written as text, never as markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any


def library(extra: str) -> str:
    """The plotting library's program; ``extra`` is what to install where it is missing."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as missing:
        line = f'the page needs plotly: pip install "flockstep[{extra}]"'
        raise ModuleNotFoundError(line, name=missing.name) from missing
    return str(get_plotlyjs())


def file(name: str, package: str = "flockstep.pages") -> str:
    """A text file of a package: here ``look.css``, ``theme.js``, ``charts.js`` and ``timeline.js``."""
    return resources.files(package).joinpath(name).read_text(encoding="utf8")


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Put parts in their places ``@@NAME@@``, in one pass: what is put in is not looked through for places again."""
    return re.sub(r"@@([A-Z]+)@@", lambda place: parts[place.group(1)], template)


def as_script(data: Mapping[str, Any]) -> str:
    """JSON in which no word can end the script it stands in."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def colors() -> list[str]:
    """One color for each of several things on white, the same as on the pages; after the last they begin anew."""
    light = file("look.css").partition("}")[0]
    return re.findall(r"--s\d+: (#\w{6})", light)
