"""DPSGD on real processes over links of 100 Mbit/s: a worker is killed, then the server; both are started again.

Four processes, one of them the server too, each in a network namespace of its own, train a character LSTM with DPSGD
until they have taken a given number of steps together. In the disturbed run node 3 is killed (kill -9) at a quarter of
the budget and started again at once; node 0, the server, is killed at half, and started again when the others are past
0.55. Each comes back knowing nothing but the address of node 1; its process has imported torch before, since that takes
as long as a good part of a run. Compared is the loss of the average model on unseen
text, seed by seed, with a run that nobody disturbs. Needs Linux, root, and the commands ip and tc.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import Progress, arguments, finish
from experiments.dpsgd_churn.flock import Flock
from experiments.dpsgd_churn.train import STRATEGY
from flockstep.strategy import describe

NAME = "experiments.dpsgd_churn"
HERE = Path(__file__).parent
WORKER, SERVER, CONTACT = 3, 0, 1
WITHIN = 0.03
RATE = "100 Mbit/s"


def run(budget: int, seed: int, *, disturbed: bool) -> dict[str, Any]:
    """One run; the loss of the average model in the end, and how stale the server's pushes were."""
    with tempfile.TemporaryDirectory() as name, Flock(Path(name), budget, seed, RATE) as flock:
        if disturbed:
            flock.prepare(WORKER, CONTACT)
            flock.prepare(SERVER, CONTACT)
            flock.wait_until(0.25, CONTACT)
            flock.kill(WORKER)
            flock.restart(WORKER)
            flock.wait_until(0.5, CONTACT)
            flock.kill(SERVER)
            # The others go on without it.
            flock.wait_until(0.55, CONTACT)
            flock.restart(SERVER)
        told = flock.finish()
    stale = {key.removeprefix("staleness "): n for key, n in told["counts"].items() if key.startswith("staleness ")}
    return {
        "seed": seed,
        "run": "worker and server killed" if disturbed else "undisturbed",
        "validation loss": round(told["loss"], 4),
        "server restored": told["counts"].get("server restored", 0),
        "pushes by staleness": " ".join(
            f"{key}:{stale[key]}" for key in sorted(stale, key=lambda k: int(k.split("-")[0]))
        ),
    }


def main() -> None:
    """Both runs for every seed."""
    options = arguments(NAME, __doc__ or "").parse_args()
    budget, seeds = (150, [0]) if options.quick else (8000, [0, 1, 2])
    progress, rows = Progress(2 * len(seeds)), []
    for seed in seeds:
        for disturbed in (False, True):
            progress(f"seed {seed}, {'disturbed' if disturbed else 'undisturbed'}")
            rows.append(run(budget, seed, disturbed=disturbed))
    ratios = [
        struck["validation loss"] / calm["validation loss"] for calm, struck in zip(rows[::2], rows[1::2], strict=True)
    ]
    mean, worst = statistics.fmean(ratios), max(ratios)
    met = {
        f"loss, disturbed / undisturbed: {mean:.4f} on average over {len(seeds)} seed(s) (largest {worst:.4f}), "
        f"within {WITHIN:.0%}": abs(mean - 1) <= WITHIN,
        "the server took over a worker's model": all(row["server restored"] for row in rows[1::2]),
    }
    folder = options.out or (None if options.quick else HERE)
    note = f"{describe(STRATEGY)}, 4 processes, {budget} steps in all, links of {RATE}."
    finish(NAME, rows, figures={"ratios": [round(ratio, 4) for ratio in ratios]}, met=met, folder=folder, note=note)


if __name__ == "__main__":
    main()
