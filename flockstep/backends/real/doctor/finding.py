"""What a check gives: a mark, what was seen, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mark(StrEnum):
    """How a check went; words, so that it can be read without colours."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line for people, and a second one where there is something to do."""

    check: str
    mark: Mark
    seen: str
    fix: str = ""


def ok(check: str, seen: str) -> Finding:
    """All is well."""
    return Finding(check, Mark.OK, seen)


def warning(check: str, seen: str, fix: str) -> Finding:
    """It works, and could be better."""
    return Finding(check, Mark.WARNING, seen, fix)


def failed(check: str, seen: str, fix: str) -> Finding:
    """It does not work."""
    return Finding(check, Mark.FAILED, seen, fix)


def skipped(check: str, why: str) -> Finding:
    """Not looked at, which is nobody's fault."""
    return Finding(check, Mark.SKIPPED, why)
