"""The house rules that a machine can hold: who imports whom, how long a file is, what is public."""

import ast
import re
import sys
from pathlib import Path

import pytest

import flockstep

ROOT = Path(flockstep.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# What a part of the house may import of ours. Longest prefix wins.
ROOTS = {"errors", "check", "cores", "units", "vector", "message", "optimizers", "modes"}
RUN = ROOTS | {
    "node",
    "strategy",
    "flock",
    "guard",
    "budget",
    "timeline",
    "trace",
    "drift",
    "workloads.workload",
    "backends.loop",
    "faults",
}
PARTS = ROOTS | {"node", "strategy", "flock", "averages", "clips", "codecs", "parts", "topologies"}
MAY_IMPORT = {
    "errors": set(),
    "check": set(),
    "cores": set(),
    "units": {"check"},
    "vector": set(),
    "message": set(),
    "optimizers": set(),
    "modes": set(),
    "node": ROOTS,
    "strategy": ROOTS | {"node"},
    "guard": ROOTS | {"node"},
    "flock": ROOTS | {"node"},
    "tails": {"check", "vector"},
    "budget": ROOTS | {"node"},
    "timeline": set(),
    "trace": ROOTS | {"timeline", "exports", "drift"},
    "drift": {"trace"},
    "pages": set(),
    "parts": PARTS,
    "averages": PARTS,
    "clips": PARTS,
    "codecs": PARTS,
    "topologies": {"check"},
    "faults": {"check", "units"},
    "workloads": {"check", "vector", "workloads"},
    # Applications stand on what strategies stand on; running them on several nodes is a file of its own.
    "lda": ROOTS | {"node", "lda", "pages"},
    # DPSVI pushes as DPSGD does.
    "lda.nodes": ROOTS | {"node", "lda", "parts.push_protocol"},
    "lda.nodes.fit_nodes": None,
    "rl": ROOTS | {"backends.real.launch.child_processes", "rl"},
    "rl.nodes.learn_nodes": None,
    "strategies": PARTS - {"flock"},
    "backends.loop": ROOTS | {"node", "guard", "strategy", "budget", "timeline", "trace", "backends.loop"} | PARTS,
    "backends.sim": RUN | {"backends.sim"},
    "backends.real": RUN | {"backends.real", "live.journal"},
    "joining": None,
    "training": None,
    "testing": PARTS | {"faults", "trace", "workloads", "backends.sim", "testing"},
    # What is tried there is a user's loop.
    "testing.loops": None,
    "cli": None,
    "compare": None,
    "texts": None,
    "exports": ROOTS | {"timeline", "trace", "exports"},
    "live": ROOTS | {"timeline", "trace", "drift", "pages", "live"},
    "": None,
    "backends": set(),
}
KNOW_NO_MACHINE = ("averages", "clips", "codecs", "parts", "strategies", "topologies")
NEVER = {"time", "threading", "random", "asyncio", "torch.distributed"}


def place(path):
    """``parts.partners`` for flockstep/parts/partners.py."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix("__init__").removesuffix(".")


def imports(path):
    """Every module a file imports, by full name; ``from flockstep import check`` counts as flockstep.check."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "flockstep":
            yield from (f"flockstep.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def rule(name, table):
    """The entry of the longest prefix of a dotted name."""
    parts = name.split(".")
    return next(".".join(parts[:n]) for n in range(len(parts), -1, -1) if ".".join(parts[:n]) in table)


@pytest.mark.parametrize("path", FILES, ids=place)
def test_the_import_table(path):
    allowed = MAY_IMPORT[rule(place(path), MAY_IMPORT)]
    if allowed is None:
        return
    for module in imports(path):
        if module.startswith("flockstep."):
            ours = module.removeprefix("flockstep.")
            assert any(ours == name or ours.startswith(f"{name}.") for name in allowed), f"{place(path)} imports {ours}"


@pytest.mark.parametrize("path", [p for p in FILES if place(p).startswith(KNOW_NO_MACHINE)], ids=place)
def test_parts_and_strategies_know_no_clock_no_thread_no_network(path):
    for module in imports(path):
        assert not any(module == name or module.startswith(f"{name}.") for name in NEVER), module


@pytest.mark.parametrize("path", [p for p in FILES if place(p).startswith("strategies.")], ids=place)
def test_a_strategy_file_has_its_four_movements(path):
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert all(re.search(rf"^{word}\s", text, re.MULTILINE) for word in ("Sends", "Waits", "Keeps"))
    assert "<-" in text


PROGRAMS = {
    f"{place(path)}.{kind.name}": (path, method)
    for path in FILES
    if place(path).startswith(("strategies.", "lda.nodes.dpsvi"))
    for kind in ast.parse(path.read_text()).body
    if isinstance(kind, ast.ClassDef)
    for method in kind.body
    if isinstance(method, ast.AsyncFunctionDef) and method.name == "run"
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_strategy_is_read_at_a_glance(name):
    """At most 25 lines of ``run``, its docstring, comments and empty lines not counted."""
    path, run = PROGRAMS[name]
    told = range(run.body[0].lineno, run.body[0].end_lineno + 1) if ast.get_docstring(run) else ()
    lines = enumerate(path.read_text().splitlines(), 1)
    own = [line.strip() for number, line in lines if run.lineno <= number <= run.end_lineno and number not in told]
    assert len([line for line in own if line and not line.startswith("#")]) <= 25


def test_all_strategies_are_looked_at():
    assert {name.split(".")[-1] for name in PROGRAMS} >= {"LocalSGD", "Swarm", "HPSGD", "StreamingDiLoCo", "DPSVI"}
    assert len(PROGRAMS) >= 25


@pytest.mark.parametrize("path", FILES, ids=place)
def test_no_file_outgrows_its_idea(path):
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in ("utils", "helpers", "base", "manager", "common", "misc")


def test_public_names_are_there_and_documented():
    for name in flockstep.__all__:
        assert getattr(flockstep, name).__doc__, name


def test_nothing_in_the_library_asserts_or_pickles():
    for path in FILES:
        tree = ast.parse(path.read_text())
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree)), path
        # Nodes and members get theirs from the process that starts them, and nothing from a network.
        if place(path) not in ("backends.real.launch.spawn", "backends.real.crew.process_crew", "rl.nets.processes"):
            assert not any("pickle" in module for module in imports(path)), path


TESTS = Path(__file__).parent
ALWAYS = {
    *("flockstep", "benchmarks", "experiments", "tools", "torch", "numpy", "numba", "cloudpickle", "cryptography"),
    *("h11", "xxhash", "greenlet", "safetensors", "typer", "click", "rich", "matplotlib", "pytest", "hypothesis"),
    *sys.stdlib_module_names,
    *(path.stem for path in TESTS.rglob("*.py")),
}


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: path.stem)
def test_a_test_that_needs_more_than_is_installed_says_so_first(path):
    """A stranger has what the README's command installs: whatever else a test file imports, it may skip for."""
    for statement in ast.parse(path.read_text()).body:
        if "importorskip" in ast.unparse(statement):
            return
        if isinstance(statement, ast.Import | ast.ImportFrom):
            names = [statement.module] if isinstance(statement, ast.ImportFrom) else [a.name for a in statement.names]
            assert {name.split(".")[0] for name in names} <= ALWAYS


def test_no_two_test_files_have_one_name():
    """pytest imports them by name: of two, one is not found, and which depends on who else is collected."""
    names = [path.name for path in TESTS.rglob("*.py") if path.name not in ("conftest.py", "__init__.py")]
    assert sorted(set(names)) == sorted(names)
