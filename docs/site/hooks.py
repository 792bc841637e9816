"""What the site has besides docs/: the README as first page, experiments, changes, and what commands say of themselves.

mkdocs calls the functions named ``on_...``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# Pages that lie outside of docs/, and their places on the site.
PLACES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
HELP = re.compile(r"^<!-- help: (.+) -->$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)]*)?\)")
_PICTURES = {".png", ".svg", ".gif"}


def on_files(files: Files, config: Any) -> Files:
    """Add what lies elsewhere in the repository."""
    for source, place in _outside().items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to where things are on the site, and let commands speak for themselves."""
    place = page.file.src_uri
    source = next((source for source, other in _outside().items() if other == place), f"docs/{place}")
    markdown = _LINK.sub(lambda found: _link(found, source, place), markdown)
    return HELP.sub(lambda found: f"```text\n{help_of(found[1])}\n```", markdown)


def _outside() -> dict[str, str]:
    """Files of the repository that are not in docs/, and their places on the site."""
    found = dict(PLACES)
    for path in sorted((ROOT / "experiments").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.name == "README.md":
            found[name] = name.replace("README", "index")
        elif path.suffix in _PICTURES:
            found[name] = name
    return found


def _link(found: re.Match[str], source: str, place: str) -> str:
    """A link of ``source`` in the repository, as it must be on a page at ``place`` of the site."""
    mark, text, path, anchor = found.groups(default="")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    there = _outside().get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
    if there is None:
        # A folder or a program of the repository: it has no page, and its name stays as text.
        return text
    return f"{mark}[{text}]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{anchor})"


def commands() -> Iterator[str]:
    """Every command of ``flockstep``, groups before what is in them: "keys", "keys create"."""
    from typer.main import get_command

    from flockstep.cli import app
    from flockstep.cli.commands import command

    for name in get_command(app).commands:
        yield name
        yield from (f"{name} {inner}" for inner in getattr(command(name), "commands", {}))


def help_of(line: str) -> str:
    """What ``flockstep ... --help`` says, 80 characters wide, without boxes."""
    from typer.main import get_command

    from flockstep.cli import app
    from flockstep.cli.commands import command

    program, *names = line.split()
    found: Any = command(names[0]) if names else get_command(app)
    for name in names[1:]:
        found = found.commands[name]
    found.rich_markup_mode = None
    width = {"terminal_width": 80, "max_content_width": 80}
    context = found.make_context(" ".join([program, *names]), [], resilient_parsing=True, **width)
    text = re.sub(r"\[/?bold\]", "", found.get_help(context)).replace("\b\n", "")
    return "\n".join(row.rstrip() for row in text.splitlines())
