"""The picture: steps against nodes, with the line of ideal speed-up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.celgc_speedup.runs import Rate

Best = Mapping[tuple[int, int], Rate]
"""The chosen learning rate by period and number of nodes."""


def draw(best: Best, target: float, path: Path) -> Path:
    """Medians with bars from the fewest to the most steps over seeds, on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.4), layout="constrained")
    axes = figure.subplots()
    nodes = sorted({size for _, size in best})
    periods = sorted({period for period, _ in best})
    for index, period in enumerate(periods):
        chosen = [(size, best[period, size]) for size in nodes if (period, size) in best]
        # Beside each other: at the same place one would hide the other.
        places = [size * (0.96, 1.04)[index % 2] for size, _ in chosen]
        medians = [rate.median or 0.0 for _, rate in chosen]
        below = [m - rate.reached[0] for m, (_, rate) in zip(medians, chosen, strict=True)]
        above = [rate.reached[-1] - m for m, (_, rate) in zip(medians, chosen, strict=True)]
        axes.errorbar(places, medians, [below, above], fmt="os"[index % 2], capsize=3, label=f"CELGC, I = {period}")
    first = best.get((periods[0], nodes[0])) if best else None
    if first is not None and first.median is not None:
        ideal = [first.median * nodes[0] / size for size in nodes]
        axes.plot(nodes, ideal, "--", color="grey", label="ideal: 1/n", zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(nodes, [str(size) for size in nodes])
    axes.set_xlabel("nodes n")
    axes.set_ylabel(f"steps per node to a gradient norm of {target:g}")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
