"""Would a release be whole? ``make release-check``, from the root of a clone.

Builds sdist and wheel, the wheel from the sdist; compares both with what git tracks; lets twine look at the README; and
uses the wheel from another folder, in an environment of its own that borrows the packages of this one and downloads
nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PACKAGE = "flockstep"
# What the build adds by itself.
SDIST_ADDS = {"PKG-INFO", "pyproject.toml", ".gitignore"}
WHEEL_ADDS = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
# Kept short: that all of it runs is what tests are for, that all of it is there is what this is for. The model reads
# the text that lies in the package.
SIMULATION = """
import functools, torch, flockstep as fs
from flockstep.workloads.language import CharLSTM
sgd = functools.partial(torch.optim.SGD, lr=0.5)
print(fs.simulate(fs.LocalSGD(period=4), CharLSTM(batch=2, length=8, hidden=8), nodes=2, steps=8, optimizer=sgd))
"""


def within(files: Iterable[str], listed: Iterable[str]) -> set[str]:
    """Those of the files that are listed, or that lie in a folder that is; ``/docs`` is ``docs`` of the root."""
    tops = {PurePosixPath(name.strip("/")) for name in listed}
    return {name for name in files if not tops.isdisjoint((PurePosixPath(name), *PurePosixPath(name).parents))}


def differences(built: Iterable[str], expected: Iterable[str], may_add: Iterable[str] = ()) -> list[str]:
    """One line for each file that is missing from a build, and for each that has no business there."""
    built, expected = set(built), set(expected)
    missing = [f"missing: {name}" for name in sorted(expected - built)]
    return missing + [f"stray: {name}" for name in sorted(built - expected - set(may_add))]


def check_sdist(built: Iterable[str], tracked: Iterable[str], listed: Iterable[str]) -> list[str]:
    """What is wrong with an sdist; names as they are in it, below the one folder that holds all."""
    inside = {name.partition("/")[2] for name in built}
    return differences(inside, within(tracked, listed), SDIST_ADDS)


def check_wheel(built: Iterable[str], tracked: Iterable[str], version: str) -> list[str]:
    """What is wrong with a wheel: it has every tracked file of the package, and what tells pip of it."""
    about = {f"{PACKAGE}-{version}.dist-info/{name}" for name in WHEEL_ADDS}
    return differences(built, within(tracked, [PACKAGE]) | about)


def sdist_files(path: Path) -> list[str]:
    """All but folders."""
    with tarfile.open(path) as archive:
        return [member.name for member in archive if not member.isdir()]


def wheel_files(path: Path) -> list[str]:
    """All but folders."""
    with zipfile.ZipFile(path) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """What a command says. Where it fails, the reader gets all of that, and it ends here."""
    # Neither the source tree nor settings of this shell's may help the wheel.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLOCKSTEP_"))}
    done = subprocess.run(
        command, cwd=folder, env=clean, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(map(str, command))}")
    return done.stdout.strip()


def build(into: Path) -> tuple[Path, Path]:
    """An sdist, and a wheel out of it."""
    # With the hatchling that is here: one of its own would have to be downloaded.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", into)
    (sdist,), (wheel,) = into.glob("*.tar.gz"), into.glob("*.whl")
    return sdist, wheel


def install(wheel: Path, home: Path) -> Path:
    """A new environment with the wheel in it, and everything else from this one; its folder of programs."""
    run(sys.executable, "-m", "venv", "--without-pip", home)
    scheme = sysconfig.get_path("scripts", "venv", {"base": str(home)})
    purelib = sysconfig.get_path("purelib", "venv", {"base": str(home)})
    python = Path(scheme) / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    # Only now, or pip would find a Flockstep that is there already. An editable install is itself a line in a file
    # like this one, and such files are not read in folders that come from one: the source tree stays out.
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (Path(purelib) / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return Path(scheme)


def use(programs: Path, version: str, folder: Path) -> None:
    """What a user does first, from a folder that has nothing in it."""
    python = programs / "python"
    home = Path(run(python, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)", folder=folder))
    if not home.resolve().is_relative_to(programs.parent.resolve()):
        sys.exit(f"this is not the wheel's: {home}")
    said = run(programs / "flockstep", "--version", folder=folder)
    if version not in said.split():
        sys.exit(f"the wheel is {version}, flockstep --version says {said}")
    run(python, "-c", f"import {PACKAGE} as fs; fs.LocalSGD(period=4)", folder=folder)
    print(run(python, "-c", SIMULATION, folder=folder))


def main() -> None:
    """Check all of it, and say how long each part took."""
    began = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - began:6.1f} s  {what}", flush=True)

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    tracked = run("git", "ls-files").splitlines()
    with tempfile.TemporaryDirectory(prefix="release-") as made:
        sdist, wheel = build(Path(made) / "dist")
        version = wheel.name.split("-")[1]
        say(f"built {sdist.name} ({sdist.stat().st_size:,} bytes) and {wheel.name} ({wheel.stat().st_size:,} bytes)")
        in_sdist, in_wheel = sdist_files(sdist), wheel_files(wheel)
        wrong = [f"{sdist.name}: {line}" for line in check_sdist(in_sdist, tracked, listed["include"])]
        wrong += [f"{wheel.name}: {line}" for line in check_wheel(in_wheel, tracked, version)]
        if wrong:
            sys.exit("\n".join(wrong))
        say(f"{len(in_sdist)} files in the sdist, {len(in_wheel)} in the wheel: those that git tracks, and no others")
        run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        say("twine finds nothing wrong")
        programs = install(wheel, Path(made) / "environment")
        say("installed in an environment of its own")
        elsewhere = Path(made) / "elsewhere"
        elsewhere.mkdir()
        use(programs, version, elsewhere)
        say(f"version {version} imports, and trains virtual nodes")


if __name__ == "__main__":
    main()
