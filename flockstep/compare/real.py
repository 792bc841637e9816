"""Real runs, one after another: on this machine's own links, or in a laboratory of slow ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import flockstep as fs
from flockstep.compare.cluster import RealCluster
from flockstep.compare.folder import finished, run_file
from flockstep.compare.lab.commands import Missing
from flockstep.compare.lab.lab import Lab
from flockstep.compare.lab.node_process import launch_in
from flockstep.compare.plan import Comparison
from flockstep.compare.runs import perform
from flockstep.trace import Row

if TYPE_CHECKING:
    from flockstep.compare.runner import Listener, Run


def run_in_turn(comparison: Comparison, out: Path, runs: Sequence[Run], listener: Listener) -> None:
    """Run them; each ends before the next begins, so that none disturbs another."""
    cluster, plan = comparison.cluster, comparison.record()
    if not isinstance(cluster, RealCluster):
        raise TypeError(f"real runs need a real cluster, got {cluster!r}")
    with ExitStack() as stack:
        lab = _laboratory(stack, cluster) if runs else None
        for run in runs:
            start = fs.launch if lab is None else partial(launch_in, lab, comparison, run.index)
            listener.begin(run)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                path = run_file(out, run.index, run.seed)
                perform(comparison, run.index, run.seed, path, _teller(listener, run), start)
            for each in caught:
                listener.warn(run, str(each.message))
            outcome = finished(out, plan, run.index, run.seed)
            listener.end(run, outcome.failure if outcome else None)


def _teller(listener: Listener, run: Run) -> Callable[[Row], None]:
    return lambda row: listener.progress(run, row.step, row.loss)


def _laboratory(stack: ExitStack, cluster: RealCluster) -> Lab | None:
    if cluster.link is None:
        return None
    try:
        return stack.enter_context(Lab(nodes=cluster.nodes, rate=cluster.link))
    except Missing as reason:
        raise ValueError(
            f"links cannot be limited to {cluster.link} here: {reason}\n"
            "  leave --link out to compare over this machine's own links, or leave out --real"
        ) from reason
