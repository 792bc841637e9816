"""Every Python block of the README and the docs runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # One namespace a page, as a reader would type it: later blocks may use what earlier ones made.
    space = {"__name__": "__main__"}
    text = page.read_text()
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 1
        exec(compile("\n" * line + match[1], str(page), "exec"), space)


@pytest.mark.slow
def test_the_blocks_of_the_readme_are_one_script(tmp_path):
    """As a reader would who pastes one below the other into a file."""
    script = tmp_path / "readme.py"
    script.write_text("\n".join(BLOCK.findall((ROOT / "README.md").read_text())))
    ended = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert "Lazy(distance=0.5): loss" in ended.stdout


def test_links_to_files_lead_somewhere():
    for page in {*PAGES, *ROOT.glob("*.md")}:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
