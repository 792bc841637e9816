"""What the settings of a topic model may be, and what they are where nobody says."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from sklearn.utils._param_validation import Interval, StrOptions

from flockstep.lda.priors import MOST

FOUND_BEST = {"vb": (0.5, 10.0, 100), "map": (0.6, 1.0, 5), "cvb0": (0.6, 1.0, 12)}
"""Learning decay, learning offset, rounds per document, for each objective: the best on held-out newsgroups."""

CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "objective": [StrOptions({"vb", "map", "cvb0"})],
    "doc_topic_prior": [None, StrOptions({"auto"}), "array-like", Interval(Real, 0, MOST, closed="right")],
    "topic_word_prior": [None, StrOptions({"auto"}), Interval(Real, 0, MOST, closed="right")],
    "learning_method": [StrOptions({"online", "batch"})],
    "batch_size": [None, Interval(Integral, 1, None, closed="left")],
    "learning_decay": [None, Interval(Real, 0, 1, closed="both")],
    "learning_offset": [None, Interval(Real, 1, None, closed="left")],
    "learning_delay": [Interval(Real, 0, None, closed="left")],
    "max_iter": [Interval(Integral, 0, None, closed="left")],
    "warm_start": ["boolean"],
    "seed_words": [None, list, tuple],
    "total_samples": [Interval(Real, 0, None, closed="neither")],
    "mean_change_tol": [Interval(Real, 0, None, closed="left")],
    "max_doc_update_iter": [None, Interval(Integral, 1, None, closed="left")],
    "evaluate_every": [None, Integral],
    "perp_tol": [Interval(Real, 0, None, closed="left")],
    "patience": [None, Interval(Integral, 1, None, closed="left")],
    "tolerance": [Interval(Real, 0, None, closed="left")],
    "n_jobs": [None, Integral],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


def found_best(
    objective: str, decay: float | None, offset: float | None, rounds: int | None
) -> tuple[float, float, int]:
    """What is given, and for the rest what was found best."""
    best = FOUND_BEST[objective]
    return (
        best[0] if decay is None else decay,
        best[1] if offset is None else offset,
        best[2] if rounds is None else rounds,
    )
