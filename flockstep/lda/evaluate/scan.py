"""How many topics? Models of several numbers of them, on the same documents, by the same two yardsticks."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from flockstep import check
from flockstep.lda.data.holdout import split
from flockstep.lda.estimator import LDA
from flockstep.lda.evaluate import coherence
from flockstep.lda.evaluate.completion import Completion


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One number of topics, and what came of it."""

    topics: int
    perplexity: float
    """Of documents that were held out, by document completion; lower is better."""
    npmi: float
    """How well the ten likeliest words of a topic go together in the documents it was learned from; the mean over
    topics. Higher is better."""
    seconds: float


def scan(
    X: Any,
    topics: Sequence[int],
    *,
    held_out: float = 0.1,
    seed: int = 0,
    callback: Callable[[Trial], None] | None = None,
    **settings: Any,
) -> list[Trial]:
    """Fit a model for each number of topics, on all documents but a share; ``settings`` are those of ``LDA``."""
    if not topics:
        raise ValueError("scan.topics must name at least one number of topics, got none")
    for number in topics:
        check.whole("scan", "topics", number)
    if not held_out:
        raise ValueError("scan.held_out must be above 0: numbers of topics are compared on documents held out")
    kept, apart = split(X, held_out, seed=seed)
    completion, trials = Completion(apart, seed=seed), []
    for number in topics:
        began = time.perf_counter()
        model = LDA(number, random_state=seed, **settings).fit(kept)
        seconds = time.perf_counter() - began
        top = coherence.top_words(model.components_)
        scores = coherence.npmi(coherence.together(kept, top), top)
        trial = Trial(
            topics=number,
            perplexity=completion.of_topics(model.topics_, model.doc_topic_prior_),
            npmi=float(np.nanmean(scores)) if np.isfinite(scores).any() else float("nan"),
            seconds=seconds,
        )
        trials.append(trial)
        if callback is not None:
            callback(trial)
    return trials


def write_trials(path: str | Path, trials: Sequence[Trial]) -> Path:
    """A line per number of topics."""
    with Path(path).open("w", newline="", encoding="utf8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Trial)])
        writer.writeheader()
        writer.writerows(asdict(trial) for trial in trials)
    return Path(path)


def draw_trials(path: str | Path, trials: Sequence[Trial]) -> Path:
    """Both yardsticks in one picture, against the number of topics."""
    from matplotlib.figure import Figure

    ordered = sorted(trials, key=lambda trial: trial.topics)
    numbers = [trial.topics for trial in ordered]
    figure = Figure(figsize=(7, 4), layout="constrained")
    left = figure.subplots()
    right = left.twinx()
    left.plot(numbers, [trial.perplexity for trial in ordered], "o-", color="C0")
    right.plot(numbers, [trial.npmi for trial in ordered], "s--", color="C1")
    left.set_xlabel("topics")
    left.set_xticks(numbers)
    left.set_ylabel("held-out perplexity (lower is better)", color="C0")
    right.set_ylabel("coherence, NPMI (higher is better)", color="C1")
    if len(numbers) > 1 and numbers[-1] > 8 * numbers[0]:
        left.set_xscale("log")
        left.set_xticks(numbers, [str(number) for number in numbers], minor=False)
        left.minorticks_off()
    figure.savefig(path, dpi=120)
    return Path(path)
