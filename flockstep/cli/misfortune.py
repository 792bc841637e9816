"""Stragglers, crashes and slowdowns written as text: ``3:4x``, ``5@60s``, ``3:4x@60s+30s``."""

from __future__ import annotations

import re
from collections.abc import Sequence

import flockstep as fs

_NODE, _FACTOR = r"\s*(\d+)", r"(\d+\.?\d*|\.\d+)\s*x?\s*"


def stragglers(texts: Sequence[str]) -> dict[int, float]:
    """Nodes that are always slower, by number: ``3:4x`` is node 3, four times slower."""
    found: dict[int, float] = {}
    for text in texts:
        match = re.fullmatch(rf"{_NODE}\s*:\s*{_FACTOR}", text)
        if match is None:
            raise ValueError(f"cannot read the straggler {text!r}; write 3:4x for node 3 being 4 times slower")
        if int(match[1]) in found:
            raise ValueError(f"node {int(match[1])} is named twice as a straggler")
        found[int(match[1])] = float(match[2])
    return found


def crash(text: str) -> fs.Crash:
    """A node that dies: ``5@60s`` is node 5, after 60 seconds."""
    match = re.fullmatch(rf"{_NODE}\s*@(.+)", text)
    if match is None:
        raise ValueError(f"cannot read the crash {text!r}; write 5@60s for node 5 dying after 60 s")
    return fs.Crash(node=int(match[1]), at=match[2].strip())


def slowdown(text: str) -> fs.Slowdown:
    """A node that is slow for a while: ``3:4x@60s+30s`` is node 3, four times slower, from 60 s on for 30 s."""
    match = re.fullmatch(rf"{_NODE}\s*:\s*{_FACTOR}@([^+]+)\+([^+]+)", text)
    if match is None:
        raise ValueError(
            f"cannot read the slowdown {text!r}; write 3:4x@60s+30s for node 3 being 4 times slower from 60 s for 30 s"
        )
    return fs.Slowdown(node=int(match[1]), factor=float(match[2]), start=match[3].strip(), duration=match[4].strip())
