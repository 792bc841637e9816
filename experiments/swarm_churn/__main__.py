"""SwarmSGD on real processes: one node is killed at a third, another comes at two thirds. What does that cost?

Four processes train ``examples/shakespeare.py``, a character LSTM, with SwarmSGD in 8 bits and 4 local steps. In the
disturbed run node 3 is killed (kill -9) once node 0 has said that it is past a third of its steps, and node 4 joins
once it is past two thirds, knowing nothing but the address of node 1. Compared is the loss of the average model on
unseen text, seed by seed, with a run that nobody disturbs; and whether the others' losses go on falling.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import Progress, arguments, finish
from experiments.swarm_churn.flock import STRATEGY, Flock

NODES, VICTIM, NEWCOMER = 4, 3, 4
WITHIN = 0.03
HERE = Path(__file__).parent


def words(steps: int, seed: int, hidden: int) -> list[str]:
    """What the script is told."""
    return ["--steps", str(steps), "--seed", str(seed), "--hidden", str(hidden)]


def run(steps: int, seed: int, hidden: int, *, disturbed: bool) -> dict[str, Any]:
    """One run; the loss of the average model, and the mean training losses of the survivors by thirds."""
    with tempfile.TemporaryDirectory() as name, Flock(Path(name), NODES, words(steps, seed, hidden)) as flock:
        present = list(range(NODES))
        if disturbed:
            flock.prepare(NEWCOMER, words(steps // 3, seed, hidden))
            flock.wait_until(steps // 3)
            flock.kill(VICTIM)
            flock.wait_until(2 * steps // 3)
            flock.add(NEWCOMER)
            present = [rank for rank in present if rank != VICTIM]
            present.append(NEWCOMER)
        loss, sent, losses = flock.finish(present)
    survivors = [losses[rank] for rank in present if rank not in (VICTIM, NEWCOMER)]
    third = steps // 3
    thirds = [statistics.fmean(x for each in survivors for x in each[k * third : (k + 1) * third]) for k in range(3)]
    return {
        "seed": seed,
        "run": "node 3 killed, node 4 added" if disturbed else "undisturbed",
        "came": not disturbed or NEWCOMER in present,
        "validation loss": round(loss, 4),
        "training loss by thirds": " ".join(f"{x:.3f}" for x in thirds),
        "falls": thirds[0] > thirds[1] > thirds[2],
        "MB sent by node 0": sent,
        "steps of survivors": " ".join(str(len(each)) for each in survivors),
    }


def main() -> None:
    """Both runs for every seed."""
    options = arguments("experiments.swarm_churn", __doc__ or "").parse_args()
    steps, seeds, hidden = (60, [0], 16) if options.quick else (1200, [0, 1, 2], 128)
    progress, rows = Progress(2 * len(seeds)), []
    for seed in seeds:
        for disturbed in (False, True):
            progress(f"seed {seed}, {'disturbed' if disturbed else 'undisturbed'}")
            rows.append(run(steps, seed, hidden, disturbed=disturbed))
    ratios = [
        churned["validation loss"] / calm["validation loss"]
        for calm, churned in zip(rows[::2], rows[1::2], strict=True)
    ]
    worst, mean = max(ratios), statistics.fmean(ratios)
    met = {
        f"loss of the average model, disturbed / undisturbed: {mean:.4f} on average over {len(seeds)} seed(s) "
        f"(largest {worst:.4f}), within {WITHIN:.0%}": abs(mean - 1) <= WITHIN,
        "the newcomer came in time": all(row["came"] for row in rows),
        "survivors took all their steps": all(set(row["steps of survivors"].split()) == {str(steps)} for row in rows),
        "their training loss went on falling": all(row["falls"] for row in rows),
    }
    folder = options.out or (None if options.quick else HERE)
    note = f"{STRATEGY}, {NODES} processes, {steps} steps each."
    finish("experiments.swarm_churn", rows, figures={"ratios": ratios}, met=met, folder=folder, note=note)


if __name__ == "__main__":
    main()
