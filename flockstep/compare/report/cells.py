"""The report's table as HTML, there without a script too. Every cell also says what it is sorted by."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from flockstep.compare.report.figures import Summary, yardstick
from flockstep.timeline import KINDS
from flockstep.units import show_bytes, show_seconds

NONE = "–"
# As they lie on the timelines.
_ORDER = ("computing", "talking", "waiting")


def headings(lines: Sequence[Summary]) -> str:
    """The first line of the table; a button each, to sort by."""
    by = yardstick(lines)
    first = f"times as fast as {by.label}" if by else "times as fast"
    names = ["strategy", "final loss", "time to target", first, "bytes per node", "spread", *KINDS, "failures"]
    made = [f'<th scope="col"><button type="button">{html.escape(name)}</button></th>' for name in names]
    return "\n      ".join(made)


def row(line: Summary, lines: Sequence[Summary], seeds: int) -> str:
    """One strategy."""
    made = [
        _name(line),
        _cell(line.loss, *loss(line), best=_is_least(line.loss, [other.loss for other in lines])),
        _cell(line.time, *time(line), best=_is_least(line.time, [other.time for other in lines])),
        _cell(line.speedup, NONE if line.speedup is None else f"{line.speedup:.3g}×"),
        _cell(
            line.sent,
            NONE if line.sent is None else show_bytes(line.sent),
            best=_is_least(line.sent, [other.sent for other in lines]),
        ),
        _cell(line.spread, NONE if line.spread is None else f"{line.spread:.3g}", "drifting apart" * bool(line.drifts)),
        *_shares(line),
        _failures(line, seeds),
    ]
    return f'<tr style="--of: var(--s{line.index % 8})">{"".join(made)}</tr>'


def loss(line: Summary) -> tuple[str, str]:
    """``0.4321`` and ``± 0.0012``, or how many seeds have none."""
    if line.loss is None:
        bad = sum(not math.isfinite(value) for value in line.losses)
        return ("not finite", f"({bad} of {len(line.losses)} seeds)") if bad else (NONE, "")
    return f"{line.loss:.4g}", "" if line.deviation is None else f"± {line.deviation:.2g}"


def time(line: Summary) -> tuple[str, str]:
    """``12.3 s`` and ``11.9 s to 12.8 s``, or how many seeds did not get there."""
    if not line.times:
        return NONE, ""
    if line.time is None:
        return "not reached", f"({len(line.times) - len(line.reached)} of {len(line.times)} seeds)"
    least, most = show_seconds(min(line.reached)), show_seconds(max(line.reached))
    return show_seconds(line.time), f"{least} to {most}" if least != most else ""


def _name(line: Summary) -> str:
    said = (line.label, f"{line.label}()")
    about = ", ".join(text for text in ("" if line.strategy in said else line.strategy, line.optimizer) if text)
    more = f'<div class="quiet">{html.escape(about)}</div>' if about else ""
    label = html.escape(line.label)
    return f'<td data-value="{label}"><span class="swatch"></span><strong>{label}</strong>{more}</td>'


def _cell(value: float | None, text: str, more: str = "", *, best: bool = False) -> str:
    key = "" if value is None else repr(float(value))
    shown = f"<strong>{html.escape(text)}</strong>" if best else html.escape(text)
    below = f'<div class="quiet">{html.escape(more)}</div>' if more else ""
    return f'<td data-value="{key}">{shown}{below}</td>'


def _is_least(value: float | None, others: Sequence[float | None]) -> bool:
    known = [other for other in others if other is not None]
    return value is not None and len(known) > 1 and value == min(known)


def _shares(line: Summary) -> list[str]:
    """Three percentages, the first with a bar of all three."""
    parts = "".join(f'<span data-kind="{kind}" style="width: {line.shares[kind]:.2%}"></span>' for kind in _ORDER)
    bar = f'<div class="shares" aria-hidden="true">{parts}</div>'
    return [
        f'<td data-value="{line.shares[kind]!r}">{line.shares[kind]:.0%}{bar if kind == KINDS[0] else ""}</td>'
        for kind in KINDS
    ]


def _failures(line: Summary, seeds: int) -> str:
    missing = seeds - len(line.times or line.losses)
    if not line.failures:
        return f'<td data-value="0">{f"{missing} not run" if missing > 0 else "none"}</td>'
    why = "".join(f"<div>seed {seed}: {html.escape(text)}</div>" for seed, text in line.failures)
    summary = f"<summary>{len(line.failures)} of {seeds} seeds</summary>"
    return f'<td data-value="{len(line.failures)}"><details>{summary}{why}</details></td>'
