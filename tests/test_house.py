"""The house rules that a machine can hold: who imports whom, how long a file is, what is public."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

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
    "elastic",
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
    "elastic": {"check", "units"},
    "workloads": {"check", "vector", "workloads"},
    # Applications stand on what strategies stand on; running them on several nodes is a file of its own.
    "lda": ROOTS | {"node", "lda", "pages"},
    # DPSVI pushes as DPSGD does.
    "lda.nodes": ROOTS | {"node", "lda", "parts.push_protocol"},
    "lda.nodes.fit_nodes": None,
    "rl": ROOTS | {"backends.real.launch.child_processes", "rl"},
    "rl.nodes.learn_nodes": None,
    "strategies": PARTS - {"flock"},
    "backends.loop": ROOTS
    | {"node", "guard", "strategy", "budget", "elastic", "timeline", "trace", "backends.loop"}
    | PARTS,
    "backends.sim": RUN | {"backends.sim"},
    "backends.real": RUN | {"backends.real", "live.journal"},
    "joining": None,
    "islands": {"joining"},
    "training": None,
    "testing": PARTS | {"faults", "elastic", "trace", "workloads", "backends.sim", "testing"},
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


# Every rule is one test that goes through all files and names all that break it: as a test for each file, they were a
# ninth of all tests there are, and every worker collects them all.
@cache
def parsed(path):
    return ast.parse(path.read_text())


def imports(path):
    """Every module a file imports, by full name; ``from flockstep import check`` counts as flockstep.check."""
    for node in ast.walk(parsed(path)):
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


def within(module, names):
    """Whether a module is one of these or inside one."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def places(*beginnings):
    """The files whose place begins so; there must be some, or a rule about them holds nothing."""
    found = [path for path in FILES if place(path).startswith(beginnings)]
    assert found, beginnings
    return found


def none(wrong):
    """All that breaks a rule, in one message."""
    found = list(wrong)
    assert not found, "\n".join(found)


def test_the_import_table():
    allowed = {path: MAY_IMPORT[rule(place(path), MAY_IMPORT)] for path in places("")}
    none(
        f"{place(path)} imports {module}"
        for path, names in allowed.items()
        if names is not None
        for module in imports(path)
        if module.startswith("flockstep.") and not within(module.removeprefix("flockstep."), names)
    )


def test_parts_and_strategies_know_no_clock_no_thread_no_network():
    none(
        f"{place(path)} imports {module}"
        for path in places(*KNOW_NO_MACHINE)
        for module in imports(path)
        if within(module, NEVER)
    )


def test_a_strategy_file_has_its_four_movements():
    movements = (r"^Sends\s", r"^Waits\s", r"^Keeps\s", "<-")
    none(
        f"{place(path)} has no {movement}"
        for path in places("strategies.")
        for movement in movements
        if not re.search(movement, ast.get_docstring(parsed(path)) or "", re.MULTILINE)
    )


def test_no_file_outgrows_its_idea():
    none(f"{place(path)} is too long" for path in places("") if len(path.read_text().splitlines()) > 400)
    empty_names = ("utils", "helpers", "base", "manager", "common", "misc")
    none(f"{place(path)} says nothing" for path in places("") if path.stem in empty_names)


def programs():
    """Every ``run`` of a strategy: its name, its file, its syntax tree."""
    for path in places("strategies.", "lda.nodes.dpsvi"):
        for kind in parsed(path).body:
            for method in kind.body if isinstance(kind, ast.ClassDef) else ():
                if isinstance(method, ast.AsyncFunctionDef) and method.name == "run":
                    yield f"{place(path)}.{kind.name}", path, method


def length(path, run):
    """Lines of a function, its docstring, comments and empty lines not counted."""
    docstring = range(run.body[0].lineno, run.body[0].end_lineno + 1) if ast.get_docstring(run) else ()
    lines = enumerate(path.read_text().splitlines(), 1)
    own = [line.strip() for number, line in lines if run.lineno <= number <= run.end_lineno and number not in docstring]
    return len([line for line in own if line and not line.startswith("#")])


def test_a_strategy_is_read_at_a_glance():
    lengths = {name: length(path, run) for name, path, run in programs()}
    assert {name.split(".")[-1] for name in lengths} >= {"LocalSGD", "Swarm", "HPSGD", "StreamingDiLoCo", "DPSVI"}
    none(f"{name}.run has {lines} lines" for name, lines in lengths.items() if lines > 25)


def test_public_names_are_there_and_documented():
    for name in flockstep.__all__:
        assert getattr(flockstep, name).__doc__, name


def test_nothing_in_the_library_asserts_or_pickles():
    for path in FILES:
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(parsed(path))), path
        # Nodes and members get theirs from the process that starts them, and nothing from a network.
        if place(path) not in ("backends.real.launch.spawn", "backends.real.crew.process_crew", "rl.nets.processes"):
            assert not any("pickle" in module for module in imports(path)), path


def test_what_is_compiled_says_how_exactly():
    """Left unsaid, numba takes it from whoever calls first: bits would depend on what a process did before."""
    calls = [node for path in FILES for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    compiled = [call for call in calls if ast.unparse(call.func) == "numba.njit"]
    assert compiled
    for call in compiled:
        assert "fastmath" in {keyword.arg for keyword in call.keywords}, ast.unparse(call)


TESTS = Path(__file__).parent
ALWAYS = {
    *("flockstep", "benchmarks", "experiments", "tools", "torch", "numpy", "numba", "cloudpickle", "cryptography"),
    *("h11", "xxhash", "greenlet", "safetensors", "typer", "click", "rich", "matplotlib", "pytest", "hypothesis"),
    *sys.stdlib_module_names,
    *(path.stem for path in TESTS.rglob("*.py")),
}


def needed(path):
    """The packages a test file imports before it says that it may skip."""
    for statement in parsed(path).body:
        if "importorskip" in ast.unparse(statement):
            return
        if isinstance(statement, ast.Import | ast.ImportFrom):
            names = [statement.module] if isinstance(statement, ast.ImportFrom) else [a.name for a in statement.names]
            yield from (name.split(".")[0] for name in names)


def test_a_test_that_needs_more_than_is_installed_says_so_first():
    """A stranger has what the README's command installs: whatever else a test file imports, it may skip for."""
    paths = sorted(TESTS.rglob("test_*.py"))
    assert Path(__file__) in paths
    none(f"{path.name} imports {name}" for path in paths for name in needed(path) if name not in ALWAYS)


def test_no_two_test_files_have_one_name():
    """pytest imports them by name: of two, one is not found, and which depends on who else is collected."""
    names = [path.name for path in TESTS.rglob("*.py") if path.name not in ("conftest.py", "__init__.py")]
    assert sorted(set(names)) == sorted(names)
