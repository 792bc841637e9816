"""Every Python block of the README and the docs runs as it stands; the site builds; the reference is complete."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm

import flockstep

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = {"README.md", "docs/compare.md", "docs/hsa2c.md"}
"""Twenty seconds and more of a core each."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _page(page):
    name = page.relative_to(ROOT).as_posix()
    return pytest.param(page, id=name, marks=[pytest.mark.thorough] if name in LONG else [])


@pytest.mark.slow
@pytest.mark.parametrize("page", [_page(page) for page in PAGES])
def test_the_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # One namespace a page, as a reader would type it: later blocks may use what earlier ones made.
    space = {"__name__": "__main__"}
    text = page.read_text()
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 1
        exec(compile("\n" * line + match[1], str(page), "exec"), space)


@pytest.mark.thorough
def test_the_blocks_of_the_readme_are_one_script(tmp_path):
    """As a reader would who pastes one below the other into a file."""
    script = tmp_path / "readme.py"
    script.write_text("\n".join(BLOCK.findall((ROOT / "README.md").read_text())))
    ended = warm.run([script.name], cwd=tmp_path, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert "Lazy(distance=0.5): loss" in ended.stdout


def test_links_to_files_lead_somewhere():
    for page in {*PAGES, *ROOT.glob("*.md")}:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


DOCS = ROOT / "docs"
SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "flockstep").rglob("*.py")))
# Read by torch, by MPI's launchers and by Slurm's as well: told from other words in capitals by how they begin.
VARIABLE = re.compile(
    r"\b(?:FLOCKSTEP|LOCAL|MASTER|MPI|OMP|OMPI|PMI|PMIX|SLURM|TORCHELASTIC|WORLD)_[A-Za-z_]*[A-Za-z]\b|\bRANK\b"
)


def test_every_environment_variable_that_is_read_is_on_its_page():
    quoted = {name for text in re.findall(r'"(\w+)"', SOURCE) for name in VARIABLE.findall(text) if name == text}
    assert {name for name in quoted if name.startswith("FLOCKSTEP_")} >= {"FLOCKSTEP_KEYS", "FLOCKSTEP_JOURNAL"}
    on_page = {
        name
        for text in re.findall(r"`([^`]+)`", (DOCS / "environment.md").read_text())
        for name in VARIABLE.findall(text)
    }
    assert on_page == quoted


@pytest.mark.parametrize(
    "space", ["", ".averages", ".clips", ".codecs", ".faults", ".tails", ".topologies", ".testing"]
)
def test_every_public_name_is_in_the_reference(space):
    names = importlib.import_module(f"flockstep{space}").__all__
    spaces = {"averages", "clips", "codecs", "faults", "tails", "topologies"}
    assert {f"flockstep{space}.{name}" for name in names if space or name not in spaces} <= referred()


@pytest.mark.parametrize(("space", "needs"), [("lda", "sklearn"), ("rl", "gymnasium")])
def test_every_public_name_of_an_application_is_in_the_reference(space, needs):
    pytest.importorskip(needs)
    names = importlib.import_module(f"flockstep.{space}").__all__
    assert {f"flockstep.{space}.{name}" for name in names} <= referred()


def referred():
    """What reference pages ask mkdocstrings for."""
    pages = (DOCS / "reference").glob("*.md")
    return {name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)}


@pytest.mark.slow
def test_the_page_of_the_command_line_has_every_command():
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    asked = hooks.HELP.findall((DOCS / "reference" / "cli.md").read_text())
    assert asked == ["flockstep", *(f"flockstep {name}" for name in hooks.commands())]
    words = " ".join(hooks.help_of("flockstep doctor").split())
    assert words.startswith("Usage: flockstep doctor [OPTIONS]")
    assert "[env var: FLOCKSTEP_KEYS]" in words
    assert "[bold]" not in words


def test_the_format_of_the_wire_is_the_one_on_its_page():
    wire, message = (importlib.import_module(f"flockstep.{name}") for name in ("backends.real.mailbox.wire", "message"))
    streams = importlib.import_module("flockstep.backends.real.rounds.carrier.streams")
    page = (DOCS / "wire.md").read_text()
    # Offset, length and name of every field, as the page has them: they leave no gap, and end where the code says.
    for part, end in zip(page.split("## Streams"), (wire.FRAME_BYTES, streams.HEAD_BYTES), strict=True):
        fields = [(int(a), int(b), c) for a, b, c in re.findall(r"^    (\d+) +(\d+) +(\w+)", part, re.MULTILINE)]
        ends = [begin + length for begin, length, _ in fields]
        assert [begin for begin, _, _ in fields] == [0, *ends[:-1]]
        assert ends[-1] == end
    assert wire.FRAME_BYTES == 104 + message.HEADER_BYTES
    words = importlib.import_module("flockstep.backends.real.rounds.council.words")
    assert all(f"`{word}`" in page for word in words.Word.kinds)
    assert f"The version is {wire.VERSION}." in page
    assert all(f"{kind.value} {kind.name.lower()}" in page for kind in wire.Kind)
    assert all(f"{code} {str(dtype).removeprefix('torch.')}" in page for code, dtype in enumerate(message._DTYPES))


@pytest.mark.thorough
def test_the_site_builds_without_a_warning(tmp_path):
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module, reason=f"the site needs {module}: pip install 'flockstep[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(Path(flockstep.__file__).parents[1])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "site" / "index.html").read_text()
    assert "Train in a flock" in home and "docs/join.md" not in home
    assert "Usage: flockstep run" in (tmp_path / "site" / "reference" / "cli.html").read_text()
    # Whoever opens the folder without a network sees the same: nothing is loaded from elsewhere.
    loaded = r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="https?:'
    strangers = [page.name for page in (tmp_path / "site").rglob("*.html") if re.search(loaded, page.read_text())]
    assert not strangers
