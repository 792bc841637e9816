"""What ``make release-check`` compares; the rest of it builds and installs, and is its own test."""

import re
import tarfile
import zipfile
from pathlib import Path

import flockstep
from tools.release_check import check_sdist, check_wheel, differences, sdist_files, wheel_files, within

TRACKED = [
    "README.md",
    "docs/a.md",
    "docs/pictures/b.png",
    "experiments/x/README.md",
    "flockstep/py.typed",
    "flockstepping",
]
ABOUT = ["METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"]
WHEEL = ["flockstep/py.typed", *(f"flockstep-1.2.dist-info/{name}" for name in ABOUT)]


def test_listed_are_files_and_whole_folders_of_the_root_only():
    assert within(TRACKED, ["/docs", "/README.md"]) == {"README.md", "docs/a.md", "docs/pictures/b.png"}
    assert within(TRACKED, ["flockstep"]) == {"flockstep/py.typed"}
    assert within(TRACKED, []) == set()


def test_equal_lists_differ_in_nothing_whatever_their_order():
    assert differences(["b", "a"], ["a", "b"]) == []
    assert differences([], []) == []


def test_each_missing_and_each_stray_file_is_named():
    assert differences(["c", "a", "d"], ["b", "a", "e"]) == ["missing: b", "missing: e", "stray: c", "stray: d"]


def test_what_may_be_added_need_not_be():
    assert differences(["a", "more"], ["a"], ["more", "even more"]) == []


def test_an_sdist_has_what_is_listed_and_no_readme_of_another_folder():
    built = ["flockstep-1.2/README.md", "flockstep-1.2/PKG-INFO", "flockstep-1.2/pyproject.toml"]
    assert check_sdist(built, TRACKED, ["/README.md"]) == []
    assert check_sdist([*built, "flockstep-1.2/experiments/x/README.md"], TRACKED, ["/README.md"]) == [
        "stray: experiments/x/README.md"
    ]
    assert check_sdist(built, TRACKED, ["/README.md", "/docs"]) == [
        "missing: docs/a.md",
        "missing: docs/pictures/b.png",
    ]


def test_a_wheel_has_all_of_the_package_and_nothing_beside_it():
    assert check_wheel(WHEEL, TRACKED, "1.2") == []
    assert check_wheel(WHEEL[1:], TRACKED, "1.2") == ["missing: flockstep/py.typed"]
    assert check_wheel([*WHEEL, "flockstep/notes.txt"], TRACKED, "1.2") == ["stray: flockstep/notes.txt"]
    assert check_wheel([*WHEEL, "tests/test_a.py"], TRACKED, "1.2") == ["stray: tests/test_a.py"]


def test_folders_are_no_files(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").touch()
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "in", "in")
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.mkdir("in")
        archive.write(tmp_path / "in" / "file", "in/file")
    assert sdist_files(tmp_path / "a.tar.gz") == wheel_files(tmp_path / "a.whl") == ["in/file"]


def test_the_citation_is_of_this_version():
    text = (Path(__file__).parents[1] / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", text, re.MULTILINE) == [flockstep.__version__]
