"""The lines of a journal as bytes, and how a long journal is made short: the older, the coarser."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from flockstep.live.coarse import at_most
from flockstep.timeline import KINDS, Span

Line = dict[str, Any]

# Of what is old: so many spans, and so many rows and changes of peers and views, are enough for a picture.
_SPANS, _ROWS, _GRAIN = 4096, 2048, 0.1


def encode(lines: Iterable[Line]) -> bytes:
    """One line each."""
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def decode(data: bytes) -> list[Line]:
    """The whole lines of some bytes; one that is no JSON object was torn by a crash, and is left out."""
    made = []
    for line in data.split(b"\n"):
        try:
            parsed = json.loads(line)
        except ValueError:
            continue
        if isinstance(parsed, dict):
            made.append(parsed)
    return made


def write(file: BinaryIO, data: bytes) -> None:
    """All of it: a raw file may take less at a time."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def shorten(path: Path, file: BinaryIO, newest: int) -> tuple[BinaryIO, int]:
    """Put a short journal in the place of a long one, in one move; ``newest`` bytes of the end stay as they are."""
    file.close()
    data = path.read_bytes()
    split = data.rfind(b"\n", 0, max(0, len(data) - newest)) + 1
    head, *old = decode(data[:split])
    # Readers see the old file or the new one, and know the new one by its first line.
    head["who"]["shortened"] = head["who"].get("shortened", 0) + 1
    short = encode([head, *_merged(old)]) + data[split:]
    fresh = path.with_suffix(".new")
    fresh.write_bytes(short)
    fresh.replace(path)
    return path.open("ab", buffering=0), len(short)


def _merged(old: list[Line]) -> list[Line]:
    rows = [line for line in old if "row" in line]
    while len(rows) > _ROWS:
        rows = rows[::2]
    changes = [line for line in old if "peers" in line][-_ROWS:] + [line for line in old if "view" in line][-_ROWS:]
    beats = [line for line in old if "t" in line and not line.keys() & {"peers", "view"}]
    if not beats:
        return [*rows, *changes]
    spans = [Span(0, KINDS[kind], begin, end) for beat in beats for kind, begin, end in beat.get("spans", ())]
    sent: dict[int, tuple[int, float]] = {}
    for beat in beats:
        for peer, nbytes, *when in beat.get("sent", ()):
            sent[peer] = (sent.get(peer, (0, 0.0))[0] + nbytes, when[0] if when else beat["t"])
    merged: Line = {
        "t": beats[-1]["t"],
        "spans": [
            [KINDS.index(kind), round(begin, 6), round(end, 6)]
            for _, kind, begin, end in at_most(spans, _SPANS, _GRAIN)
        ],
        "sent": [[peer, nbytes, when] for peer, (nbytes, when) in sent.items()],
    }
    for name in ("steps", "to"):
        if values := [beat[name] for beat in beats if name in beat]:
            merged[name] = values[-1]
    return [*rows, *changes, merged]
