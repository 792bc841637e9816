"""Strategies, parts and workloads written as text: ``LocalSGD(period=4, average=Coded(codec=Cast(dtype='bf16')))``.

The text looks like Python and is read with ``ast``, but never run: names come from the catalogues below, and all
other values are literals. Whatever is wrong with it is said in one sentence, as a ValueError.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import torch

import flockstep as fs
from flockstep.workloads.convex import Logistic, Quadratics, Quartics
from flockstep.workloads.language import CharLSTM, WordLSTM

_ROOTS = ("fs", "flockstep")
Parameters = Mapping[str, inspect.Parameter]


def _values(module: ModuleType, package: str = "") -> dict[str, Any]:
    things = {name: getattr(module, name) for name in module.__all__}
    return {
        name: thing for name, thing in things.items() if is_dataclass(thing) and thing.__module__.startswith(package)
    }


NAMESPACES = ("averages", "clips", "codecs", "topologies")
STRATEGIES = _values(fs, "flockstep.strategies.")
PARTS = {name: part for namespace in NAMESPACES for name, part in _values(getattr(fs, namespace)).items()}
_PREFIXES = {*_ROOTS, *NAMESPACES, *(f"{root}.{namespace}" for root in _ROOTS for namespace in NAMESPACES)}
WORKLOADS: dict[str, Any] = {
    "logistic": Logistic,
    "quadratics": Quadratics,
    "quartics": Quartics,
    "shakespeare": CharLSTM,
    "wikitext2": WordLSTM,
}


def strategy(text: str) -> fs.Strategy:
    """A strategy from its text, such as ``CELGC(period=8)`` or plain ``DataParallel``."""
    result: fs.Strategy = Language("strategy", "CELGC(period=8)", STRATEGIES, PARTS).read(text)
    return result


def workload(text: str) -> fs.Workload:
    """A workload from its text, such as ``shakespeare`` or ``quadratics(dim=100)``."""
    inside = {"float32": torch.float32, "float64": torch.float64}
    # A node's place in the flock is dealt by the run: given here it would be ignored.
    withheld = frozenset({"rank", "size"})
    language = Language("workload", "quadratics(dim=100)", WORKLOADS, inside, withheld)
    result: fs.Workload = language.read(text)
    return result


@dataclass(frozen=True)
class Language:
    """What may be written for one kind of thing, and how to say what is wrong with it."""

    kind: str
    example: str
    names: Mapping[str, Any]
    """What the whole text may make."""
    inside: Mapping[str, Any] = field(default_factory=dict)
    """What its arguments may be, besides literals."""
    withheld: frozenset[str] = frozenset()
    """Arguments that are not the user's to give."""

    def read(self, text: str) -> Any:
        """The thing that the text describes."""
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = getattr(error, "msg", None) or "not readable"
            raise ValueError(f"cannot read the {self.kind} {text!r} ({reason}); {self._write_so}") from error
        if isinstance(tree, ast.Name | ast.Call):
            return self._make(tree, self.names)
        raise ValueError(f"cannot read the {self.kind} {text!r}; {self._write_so}")

    @property
    def _write_so(self) -> str:
        return f"write it like {self.example}"

    def _make(self, tree: ast.Name | ast.Call, known: Mapping[str, Any]) -> Any:
        name = _called(tree)
        if name not in known:
            raise ValueError(self._unknown(name, known))
        thing = known[name]
        called, constant = isinstance(tree, ast.Call), not isinstance(thing, type)
        if constant and called:
            raise ValueError(f"{name} is not called; leave its parentheses out")
        if constant:
            return thing
        parameters = {k: p for k, p in inspect.signature(thing).parameters.items() if k not in self.withheld}
        given = _arguments(name, tree, parameters) if isinstance(tree, ast.Call) else {}
        _check(name, given, parameters)
        return thing(**{key: self._value(value) for key, value in given.items()})

    def _value(self, tree: ast.expr) -> Any:
        if isinstance(tree, ast.Name | ast.Call):
            return self._make(tree, self.inside)
        try:
            return ast.literal_eval(tree)
        except (ValueError, TypeError, RecursionError, MemoryError) as error:
            message = f"cannot read the value {ast.unparse(tree)!r}"
            raise ValueError(f"{message}; values are numbers, text in quotes, True, False and None") from error

    def _unknown(self, name: str, known: Mapping[str, Any]) -> str:
        if known is self.names:
            if name in self.inside:
                return f"{name} is a part of a {self.kind}, not a {self.kind}; {self._write_so}"
            kind, listed = self.kind, f"there are {', '.join(sorted(known))}"
        else:
            kind, listed = "part", f"there are {', '.join(sorted(known))}; text goes in quotes, as in {name!r}"
        return f"there is no {kind} {name!r}{_nearest(name, known)}; {listed}"


def _arguments(name: str, call: ast.Call, parameters: Parameters) -> dict[str, ast.expr]:
    if call.args:
        said = ", ".join(f"{key}={ast.unparse(value)}" for key, value in zip(parameters, call.args, strict=False))
        raise ValueError(f"{name} takes arguments by keyword only; write {name}({said}), not {ast.unparse(call)}")
    given: dict[str, ast.expr] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError(f"{name}: write every argument out, {ast.unparse(keyword.value)!r} cannot be unpacked")
        if keyword.arg in given:
            raise ValueError(f"{name}.{keyword.arg} is given twice")
        given[keyword.arg] = keyword.value
    return given


def _check(name: str, given: Mapping[str, ast.expr], parameters: Parameters) -> None:
    for key in given:
        if key not in parameters:
            has = f"its arguments are {', '.join(parameters)}" if parameters else "it takes none"
            raise ValueError(f"{name} has no argument {key!r}{_nearest(key, parameters)}; {has}")
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in given]
    if missing:
        written = ", ".join(f"{key}=..." for key in [*given, *missing])
        raise ValueError(f"{name} needs {' and '.join(missing)}; write {name}({written})")


def _called(tree: ast.Name | ast.Call) -> str:
    function = tree.func if isinstance(tree, ast.Call) else tree
    if isinstance(function, ast.Name):
        return function.id
    # So that a line copied from a script works as it is: fs.CELGC(...), fs.codecs.Cast(), codecs.Cast().
    if isinstance(function, ast.Attribute) and ast.unparse(function.value) in _PREFIXES:
        return function.attr
    raise ValueError(f"cannot read {ast.unparse(function)!r}; a name is a single word, such as LocalSGD")


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    lowered = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), lowered, n=1)
    return f" (did you mean {lowered[close[0]]}?)" if close else ""
