"""Misfortune written as text: ``3:4x``, ``5@60s``, ``2@10s+5s``; after ``@`` stands when, after ``+`` for how long."""

from __future__ import annotations

import re
from collections.abc import Sequence

import flockstep as fs

_NODE, _NUMBER, _SPAN = r"\s*(\d+)", r"(\d+\.?\d*|\.\d+)", r"@([^+]+)\+([^+]+)"
_FACTOR = rf"{_NUMBER}\s*x?\s*"


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


def crash(text: str) -> fs.faults.Crash:
    """A node that dies: ``5@60s`` is node 5, after 60 seconds; ``5@60s+30s`` comes back 30 seconds later."""
    match = re.fullmatch(rf"{_NODE}\s*@([^+]+)(?:\+([^+]+))?", text)
    if match is None:
        raise ValueError(
            f"cannot read the crash {text!r}; write 5@60s for node 5 dying after 60 s, 5@60s+30s if it comes back"
        )
    return fs.faults.Crash(node=int(match[1]), at=match[2].strip(), back_after=match[3] and match[3].strip())


def slowdown(text: str) -> fs.faults.Slowdown:
    """A node that is slow for a while: ``3:4x@60s+30s`` is node 3, four times slower, from 60 s on for 30 s."""
    match = re.fullmatch(rf"{_NODE}\s*:\s*{_FACTOR}{_SPAN}", text)
    if match is None:
        raise ValueError(
            f"cannot read the slowdown {text!r}; write 3:4x@60s+30s for node 3 being 4 times slower from 60 s for 30 s"
        )
    return fs.faults.Slowdown(
        node=int(match[1]), factor=float(match[2]), start=match[3].strip(), duration=match[4].strip()
    )


def pause(text: str) -> fs.faults.Pause:
    """A node that stands still for a while: ``2@10s+5s`` is node 2, from 10 s on for 5 s."""
    match = re.fullmatch(rf"{_NODE}\s*{_SPAN}", text)
    if match is None:
        raise ValueError(f"cannot read the pause {text!r}; write 2@10s+5s for node 2 standing still from 10 s for 5 s")
    return fs.faults.Pause(node=int(match[1]), start=match[2].strip(), duration=match[3].strip())


def partition(text: str) -> fs.faults.Partition:
    """Groups of nodes that cannot reach each other: ``0,1|2,3@10s+5s``, from 10 s on for 5 s."""
    match = re.fullmatch(rf"\s*(\d+(?:\s*[,|]\s*\d+)*)\s*{_SPAN}", text)
    if match is None:
        raise ValueError(
            f"cannot read the partition {text!r}; write 0,1|2,3@10s+5s for nodes 0 and 1 cut off from 2 and 3 "
            "from 10 s for 5 s"
        )
    groups = tuple(tuple(map(int, group.split(","))) for group in match[1].split("|"))
    return fs.faults.Partition(groups=groups, start=match[2].strip(), duration=match[3].strip())


def drop(text: str) -> fs.faults.MessageLoss:
    """A share of questions that come to nothing: ``0.05``, or ``0.05@10s+5s`` from 10 s on for 5 s."""
    match = re.fullmatch(rf"\s*{_NUMBER}\s*(?:{_SPAN})?", text)
    if match is None:
        raise ValueError(
            f"cannot read the share of lost messages {text!r}; write 0.05 for one in twenty, 0.05@10s+5s for a while"
        )
    if match[2] is None:
        return fs.faults.MessageLoss(share=float(match[1]))
    return fs.faults.MessageLoss(share=float(match[1]), start=match[2].strip(), duration=match[3].strip())
