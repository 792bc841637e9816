"""How a report's figures were computed, in words."""

from __future__ import annotations

from collections.abc import Sequence

from flockstep.compare.folder import Record
from flockstep.compare.report.figures import Summary

RINGS = "What goes around a ring counts as sent to the next node in it."


def target(plan: Record, loss: float | None) -> str:
    """Which loss times are measured to, and who chose it."""
    if loss is None:
        return "No run was whole, so there is no target."
    if plan.target is not None:
        return f"The target is a loss of {loss:.4g}, as asked for."
    return f"The target is a loss of {loss:.4g}, the lowest that all good runs reached."


def facts(plan: Record, lines: Sequence[Summary]) -> list[tuple[str, str]]:
    """What is needed to do it again."""
    return [
        ("workload", plan.workload),
        ("strategies", "; ".join(f"{line.strategy} with {line.optimizer}" for line in lines)),
        *(
            [("learning rates", f"searched with seed {plan.seeds[0]}. " + ". ".join(plan.search))]
            if plan.search
            else []
        ),
        ("seeds", ", ".join(map(str, plan.seeds))),
        ("versions", ", ".join(f"{name} {version}" for name, version in plan.versions.items())),
        (
            "clock",
            "real seconds on this machine's processes"
            if plan.real
            else "virtual: the network and the time are simulated, the gradients are real",
        ),
    ]


def methods(plan: Record, loss: float | None) -> list[tuple[str, str]]:
    """A definition per figure."""
    chosen = (
        "It was asked for."
        if plan.target is not None
        else "None was asked for: it is the highest last loss among good runs, and a good run is one that was not "
        "ended early and went at least half as far down as the best run."
    )
    return [
        ("loss", "Of the average of the nodes' models, on the whole problem, at each recorded row."),
        (
            "final loss",
            "The last loss recorded, of runs that were ended early too: mean over seeds ± standard deviation (n - 1).",
        ),
        ("target", chosen),
        (
            "time to target",
            "Seconds until the loss is first at or below the target, on a straight line between the row before and the "
            "first row there; the median over seeds, and the least and the most. It counts as reached only if every "
            "seed reached it; else the table says how many seeds did not.",
        ),
        (
            "times as fast",
            "The first strategy's median time to target, divided by this one's. Where the first did badly (a run "
            "was ended early, or went less than half as far down as the best of all), the first that did well takes "
            "its place.",
        ),
        ("bytes per node", "Bytes handed to the network by a node until the end, averaged over nodes and seeds."),
        (
            "spread",
            "Mean squared distance of the nodes' models from their average, at the last row; the median over seeds. "
            "Nodes drift apart where it grows 2.5-fold in every quarter while the average's loss falls.",
        ),
        (
            "computing, waiting, talking",
            "Seconds of a node's main task divided by the time until the node was done, averaged over nodes and seeds. "
            "What runs in the background takes no share; what is missing to 100% is none of the three."
            + (" In a collective, waiting for others counts as talking." if plan.real else ""),
        ),
        (
            "bands",
            "Each seed's losses lie on straight lines between its rows; of several rows at one place, the last counts. "
            "At every place where some seed has a row: median, least and most over seeds. A run that is over keeps its "
            "last loss; one that was ended early is left out after its last row.",
        ),
        (plan.samples, f"A row's steps per node times {plan.samples_per_step:,}, what one step of all nodes takes in."),
        (
            "timelines and bytes between pairs",
            "Of the first seed's run. Times are rounded to a ten-millionth of the run.",
        ),
        ("files", "rows.csv holds every row, table.csv the table unrounded, report.png the three loss pictures."),
    ]
