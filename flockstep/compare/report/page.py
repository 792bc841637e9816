"""The report's page: everything it shows, in one HTML file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from flockstep import pages
from flockstep.compare.folder import Results
from flockstep.compare.report import cells, method, words
from flockstep.compare.report.curves import AXES, Curve, curves
from flockstep.compare.report.figures import Summary
from flockstep.compare.report.packed import pack, pairs
from flockstep.compare.report.picture import log_losses, titles

_HERE = "flockstep.compare.report"


def page(results: Results, lines: Sequence[Summary], target: float | None) -> str:
    """The page's text: equal results give equal pages."""
    plan = results.plan
    found = words.findings(lines, target)
    program = ["charts.js", "timeline.js"]
    parts = {
        "TITLE": html.escape(words.title(plan)),
        "CLUSTER": html.escape(words.cluster(plan)),
        "FINDINGS": f'<p class="findings">{html.escape(" ".join(found))}</p>' if found else "",
        "TARGET": html.escape(method.target(plan, target)),
        "HEADINGS": cells.headings(lines),
        "ROWS": "\n".join(cells.row(line, lines, len(plan.seeds)) for line in lines),
        "SAMPLES": html.escape(plan.samples),
        "SEED": str(plan.seeds[0]) if plan.seeds else "",
        "MEANS": html.escape(method.RINGS),
        "COMMAND": html.escape(plan.command),
        "FACTS": _list(method.facts(plan, lines)),
        "METHODS": _list(method.methods(plan, target)),
        "STYLE": pages.file("look.css") + pages.file("page.css", _HERE),
        "THEME": pages.file("theme.js"),
        "LIBRARY": pages.library("compare"),
        "DATA": pages.as_script(_told(results, target)),
        "PROGRAM": "\n".join([*map(pages.file, program), pages.file("page.js", _HERE)]),
    }
    return pages.fill(pages.file("page.html", _HERE), parts)


def _told(results: Results, target: float | None) -> dict[str, Any]:
    """All that the page's program knows."""
    plan = results.plan
    along = {axis: curves(results, axis) for axis in AXES}
    lowest = min((float(curve.low.min()) for curve in along["samples"] if len(curve.x)), default=0.0)
    kept = [_timeline(results, index) for index in range(len(plan.strategies))]
    return {
        "strategies": [{"label": label} for label in plan.labels],
        "axes": titles(results),
        "losses": {axis: [_points(curve) for curve in found] for axis, found in along.items()},
        "log_losses": log_losses(along["samples"]),
        "positive": lowest > 0,
        "target": None if target is None else _number(target),
        "timelines": [packed for packed, _ in kept],
        "pairs": [sent for _, sent in kept],
    }


def _timeline(results: Results, index: int) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """What was kept of who did what when, and of who sent to whom."""
    for outcome in results.runs[index]:
        if outcome.trace.timeline is not None:
            nodes = len(outcome.trace.nodes)
            return pack(outcome.trace.timeline, nodes), pairs(outcome.trace.timeline, nodes)
    return None, None


def _points(curve: Curve) -> dict[str, list[float]]:
    return {
        "x": [_number(x, 9) for x in curve.x],
        "middle": list(map(_number, curve.middle)),
        "low": list(map(_number, curve.low)),
        "high": list(map(_number, curve.high)),
    }


def _number(value: float, digits: int = 6) -> float:
    """Six digits are more than anybody sees of a loss."""
    return float(f"{value:.{digits}g}")


def _list(entries: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"    <dt>{html.escape(term)}</dt><dd>{html.escape(text)}</dd>" for term, text in entries)
