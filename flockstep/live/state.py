"""The state of a run, as pages and terminals show it: plain lists and numbers, made from what nodes wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flockstep.drift import drift
from flockstep.live.coarse import at_most, coarsen
from flockstep.live.life import Life
from flockstep.live.views import taking_part
from flockstep.timeline import KINDS, Span
from flockstep.trace import Row

HERE, SILENT, GONE, DONE, FAILED, AWAITED = "here", "silent", "gone", "done", "failed", "awaited"
"""What a node can be. Gone: it ended without a word. Awaited: it has not come yet."""

_SILENCE = 5.0
_SPANS_SHOWN, _ROWS_SHOWN = 400, 1000


def state(lives: Sequence[Life], now: float, *, window: float | None = None) -> dict[str, Any]:
    """Everything worth showing; spans of the last ``window`` seconds, or of the whole run."""
    if not lives:
        return {"nodes": [], "ended": False, "seconds": 0.0, "view": None}
    began = min(life.began for life in lives)
    latest = {life.rank: life for life in lives}
    ranks = range(max(*(life.size for life in lives), 1 + max(latest)))
    nodes = [_node(latest.get(rank), rank, latest, began, now) for rank in ranks]
    ended = all(node["state"] in (DONE, FAILED, GONE) for node in nodes if node["state"] != AWAITED)
    end = max(life.began + life.heard for life in lives) if ended else now
    since = 0.0 if window is None else max(0.0, end - began - window)
    return {
        "strategy": lives[-1].strategy,
        "began": began,
        "seconds": end - began,
        "since": since,
        "ended": ended,
        "nodes": nodes,
        "view": taking_part(lives, began),
        **_apart(lives),
        "rows": {str(rank): rows for rank in ranks if (rows := _rows(lives, rank, began))},
        "spans": [span for rank in ranks for span in _spans(lives, rank, began, since, end - began)],
        "matrix": _matrix(lives, len(ranks)),
        "talks": _talks(lives, began, end),
        "events": _events(lives, {node["rank"] for node in nodes if node["state"] == GONE}, began),
    }


def _node(life: Life | None, rank: int, latest: dict[int, Life], began: float, now: float) -> dict[str, Any]:
    if life is None:
        return {"rank": rank, "state": AWAITED, "why": "has not come yet", "incarnation": 0}
    is_now, why = _judged(life, latest, now)
    total = sum(life.seconds.values())
    return {
        "rank": rank,
        "state": is_now,
        "why": why,
        "incarnation": life.incarnation,
        "host": life.host,
        "pid": life.pid,
        "steps": life.steps,
        "rate": 0.0 if is_now in (GONE, DONE, FAILED) else life.rate,
        "loss": life.rows[-1]["loss"] if life.rows else None,
        "share": {kind: life.seconds[kind] / total if total else 0.0 for kind in KINDS},
        "sent": sum(life.sent.values()),
        "last_to": life.last_to,
        "heard": life.began + life.heard - began,
    }


def _judged(life: Life, latest: dict[int, Life], now: float) -> tuple[str, str]:
    """What a node is now, and how one knows."""
    if life.left is not None:
        return (FAILED, life.failure) if life.failure else (DONE, "ended by itself")
    if life.dead:
        return GONE, f"its process {life.pid} is dead, and it said no farewell"
    last_word = life.began + life.heard
    losers = [
        other.rank
        for other in latest.values()
        if other.rank != life.rank and other.began + other.losses.get(life.rank, -1e18) > last_word
    ]
    lost = f"lost by {_named(losers)}" if losers else ""
    if losers and not life.local:
        return GONE, lost
    if now - last_word > _SILENCE:
        return SILENT, f"no word for {now - last_word:.0f} s" + (f", {lost}" if lost else "")
    return HERE, lost


def _named(ranks: list[int]) -> str:
    return ("node " if len(ranks) == 1 else "nodes ") + ", ".join(map(str, ranks))


def _rows(lives: Sequence[Life], rank: int, began: float) -> list[dict[str, Any]]:
    """The losses a node recorded in all its lives; not more than a picture can show."""
    rows: list[dict[str, Any]] = []
    for life in lives:
        if life.rank == rank and life.rows:
            # Between two lives there is a gap, also in a picture.
            rows += [dict.fromkeys(life.rows[0])] if rows else []
            shown = life.rows[: -1 : max(1, len(life.rows) // _ROWS_SHOWN)] + life.rows[-1:]
            rows += [{**row, "seconds": row["seconds"] + life.began - began} for row in shown]
    return rows


def _apart(lives: Sequence[Life]) -> dict[str, Any]:
    """How far the nodes' models lie apart, and what is to be said of it; by the node that looked last."""
    known = [
        [Row(**row) for row in life.rows if row.get("loss") is not None and row.get("spread") is not None]
        for life in lives
    ]
    latest = max(filter(None, known), key=lambda rows: rows[-1].seconds, default=[])
    return {"spread": latest[-1].spread if latest else None, "drift": drift(latest)}


def _spans(lives: Sequence[Life], rank: int, began: float, since: float, until: float) -> list[list[float]]:
    moved = []
    for life in lives:
        if life.rank == rank:
            shift = life.began - began
            moved += [
                Span(rank, kind, max(begin + shift, since), end + shift)
                for _, kind, begin, end in life.spans
                if end + shift > since
            ]
    fine = coarsen(moved, max(1e-9, (until - since) / _SPANS_SHOWN))
    shown = at_most(fine, 3 * _SPANS_SHOWN, (until - since) / _SPANS_SHOWN)
    return [[rank, KINDS.index(kind), round(begin, 4), round(end, 4)] for _, kind, begin, end in shown]


def _matrix(lives: Sequence[Life], size: int) -> list[list[int]]:
    made = [[0] * size for _ in range(size)]
    for life in lives:
        for peer, nbytes in life.sent.items():
            if peer < size:
                made[life.rank][peer] += nbytes
    return made


def _talks(lives: Sequence[Life], began: float, end: float) -> list[dict[str, Any]]:
    """Who spoke to whom last, the newest first."""
    last: dict[tuple[int, int], tuple[float, int]] = {}
    for life in lives:
        for peer, when in life.spoke.items():
            before = last.get((life.rank, peer), (0.0, 0))[1]
            last[life.rank, peer] = (life.began - began + when, before + life.sent[peer])
    made = [
        {"from": rank, "to": peer, "at": at, "ago": max(0.0, end - began - at), "bytes": nbytes}
        for (rank, peer), (at, nbytes) in last.items()
    ]
    return sorted(made, key=lambda talk: -talk["at"])


def _events(lives: Sequence[Life], gone: set[int], began: float) -> list[dict[str, Any]]:
    """Who came and went, the newest first."""
    latest = {life.rank: life for life in lives}
    made = []
    for life in lives:
        shift = life.began - began
        came = "came" if life.incarnation == 0 else "came again"
        made.append({"at": shift, "rank": life.rank, "what": came})
        if life.left is not None:
            made.append({"at": shift + life.left, "rank": life.rank, "what": "failed" if life.failure else "done"})
        elif life.dead or (life.rank in gone and life is latest[life.rank]):
            made.append({"at": shift + life.heard, "rank": life.rank, "what": "gone"})
    return sorted(made, key=lambda event: -event["at"])
