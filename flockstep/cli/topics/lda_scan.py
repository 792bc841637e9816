"""What ``flockstep lda scan`` does. Imported when it is run: it needs scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from flockstep import units
from flockstep.cli.support import consoles
from flockstep.lda.data import sources
from flockstep.lda.evaluate.scan import Trial, draw_trials, scan, write_trials


def numbers(topics: str) -> list[int]:
    """``10,20,50`` to numbers."""
    try:
        return [int(part) for part in topics.split(",")]
    except ValueError:
        raise ValueError(f"--topics must be numbers with commas between, such as 10,20,50, got {topics!r}") from None


def run(source: sources.Source, topics: list[int], *, held_out: float, seed: int, out: Path, **settings: Any) -> None:
    """Fit, tell after each, and draw; what is done is kept when Ctrl-C ends it."""
    done: list[Trial] = []
    messages, stopped = consoles.messages(), False
    with messages.status(f"{topics[0]} topics ...") as status:

        def tell(trial: Trial) -> None:
            done.append(trial)
            write_trials(out / "scan.csv", done)
            messages.print(
                f"{trial.topics} topics: held-out perplexity {trial.perplexity:,.1f}, NPMI {trial.npmi:.3f}, "
                f"{units.show_seconds(trial.seconds)}"
            )
            if len(done) < len(topics):
                status.update(f"{topics[len(done)]} topics ...")

        try:
            scan(source.counts, topics, held_out=held_out, seed=seed, callback=tell, **settings)
        except KeyboardInterrupt:
            stopped = True
    if not done:
        consoles.complain("Stopped by Ctrl-C before a model was done.")
        raise typer.Exit(consoles.INTERRUPTED)
    picture = draw_trials(out / "scan.png", done)
    results = consoles.results()
    results.print(_table(done))
    results.print(f"Table:   {out / 'scan.csv'}\nPicture: {picture}", markup=False, soft_wrap=True)
    if stopped:
        consoles.complain(f"Stopped by Ctrl-C after {len(done)} of {len(topics)}.")
        raise typer.Exit(consoles.INTERRUPTED)


def _table(trials: list[Trial]) -> Table:
    table = Table(title="How many topics?")
    for name in ("topics", "held-out perplexity", "NPMI", "time"):
        table.add_column(name, justify="right")
    least, best = min(t.perplexity for t in trials), max(t.npmi for t in trials)
    for trial in trials:
        table.add_row(
            str(trial.topics),
            f"{trial.perplexity:,.1f}{' *' if trial.perplexity == least else ''}",
            f"{trial.npmi:.3f}{' *' if trial.npmi == best else ''}",
            units.show_seconds(trial.seconds),
        )
    return table
