"""A short search before a comparison: every strategy at every learning rate once, and each goes on with its best.

A rate that is right for one strategy, or for one number of nodes, need not be for another. The search is a comparison
itself, of the first seed, in a folder of its own: it can be stopped and goes on, and what it ran is not run again.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flockstep.compare.folder import Outcome, Results, run_file
from flockstep.compare.plan import Comparison, Entry

FOLDER = "search"
"""Where it is kept, beside what it is for."""


def trials(comparison: Comparison) -> Comparison:
    """The comparison that the search is."""
    entries = [
        replace(entry, lr=rate, label=f"{label}, rate {rate:g}")
        for entry, label in zip(comparison.entries, comparison.labels, strict=True)
        for rate in _rates(comparison, entry)
    ]
    return replace(comparison, entries=tuple(entries), seeds=comparison.seeds[:1], rates=(), target=None)


def decided(comparison: Comparison, found: Results) -> Comparison:
    """The comparison with every strategy's best rate, and what was found in words."""
    entries, words, place = [], [], 0
    for entry, label in zip(comparison.entries, comparison.labels, strict=True):
        rates = _rates(comparison, entry)
        losses = {rate: _loss(found.runs[place + i]) for i, rate in enumerate(rates)}
        best = min(losses, key=lambda rate: losses[rate], default=None)
        if best is not None and math.isfinite(losses[best]):
            entry = replace(entry, lr=best)
        # The name is that of before: which rate it has is told beside it.
        entries.append(replace(entry, label=label))
        words += [_told(label, losses, best)] if losses else []
        place += len(rates)
    return replace(comparison, entries=tuple(entries), rates=(), search=tuple(words))


def keep_what_was_run(comparison: Comparison, chosen: Comparison, out: Path) -> None:
    """The search's runs at the rates that were taken are runs of the comparison."""
    tried, seed = trials(comparison).entries, comparison.seeds[0]
    for index, entry in enumerate(chosen.entries):
        here = run_file(out, index, seed)
        for place, trial in enumerate(tried):
            if (trial.text, trial.steps_with()) == (entry.text, entry.steps_with()) and not here.exists():
                here.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run_file(out / FOLDER, place, seed), here)


def _rates(comparison: Comparison, entry: Entry) -> tuple[float, ...]:
    """What is tried of a strategy: nothing where the plan says its rate."""
    return () if entry.rate_is_said else comparison.rates


def _loss(runs: list[Outcome]) -> float:
    """Of the one run; infinite where it was not whole."""
    whole = [run.trace.loss for run in runs if run.failure is None and run.trace.rows]
    return whole[0] if whole and math.isfinite(whole[0]) else math.inf


def _told(label: str, losses: Mapping[float, float], best: float | None) -> str:
    cells = [f"{rate:g} {f'gave {loss:.4g}' if math.isfinite(loss) else 'failed'}" for rate, loss in losses.items()]
    if best is None or not math.isfinite(losses[best]):
        return f"{label}: {', '.join(cells)}; none is good"
    edge = {min(losses): "lowest", max(losses): "highest"}.get(best) if len(losses) > 1 else None
    return f"{label}: {', '.join(cells)}; {best:g} is taken" + (f", the {edge} that was tried" if edge else "")
