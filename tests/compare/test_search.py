"""Which rates are tried, and which are taken."""

import math
from dataclasses import replace

import pytest
from comparisons import made

from flockstep.compare import search
from flockstep.compare.folder import Outcome, Results
from flockstep.trace import NodeReport, Row, Trace

TWO = ["DataParallel", {"strategy": "LocalSGD(period=2)", "label": "mine"}]


def outcome(loss):
    """One run that ended there; None: one that failed."""
    rows = [replace(Row(0.0, 0, 0.0, 0.0, 0.0), loss=9.0 if loss is None else loss)]
    return [Outcome(0, Trace("", rows, [NodeReport(0)], {}), "LostPeer: gone" if loss is None else None)]


def decided(comparison, *losses):
    return search.decided(comparison, Results(search.trials(comparison).record(), [outcome(loss) for loss in losses]))


@pytest.mark.parametrize("rates", [[0.5], [0.1, 0.2], [0.1, 0.2, 0.3]])
def test_every_strategy_is_tried_once_at_every_rate(rates):
    tried = search.trials(made(strategies=TWO, rates=rates, seeds=[7, 8]))
    assert tried.seeds == (7,)
    assert [(entry.text, entry.lr) for entry in tried.entries] == [
        (text, rate) for text in ("DataParallel", "LocalSGD(period=2)") for rate in rates
    ]
    assert len(set(tried.labels)) == 2 * len(rates)


def test_one_with_a_rate_of_its_own_is_left_as_it_is():
    comparison = made(strategies=[*TWO, {"strategy": "CELGC(period=2)", "lr": 0.7}], rates="0.1,0.2")
    assert len(search.trials(comparison).entries) == 4
    chosen = decided(comparison, 3.0, 2.0, 1.0, 5.0)
    assert [entry.lr for entry in chosen.entries] == [0.2, 0.1, 0.7]
    assert len(chosen.search) == 2
    with pytest.raises(ValueError, match="nothing to search for"):
        made(strategies=[{"strategy": "CELGC(period=2)", "lr": 0.7}], rates="0.1,0.2")


def test_the_best_is_taken_and_told():
    chosen = decided(made(strategies=TWO, rates="0.1,0.2,0.4"), 3.0, 2.0, 2.5, 3.0, None, 1.5)
    assert [entry.lr for entry in chosen.entries] == [0.2, 0.4]
    assert chosen.labels == ["DataParallel", "mine"]
    assert chosen.search == (
        "DataParallel: 0.1 gave 3, 0.2 gave 2, 0.4 gave 2.5; 0.2 is taken",
        "mine: 0.1 gave 3, 0.2 failed, 0.4 gave 1.5; 0.4 is taken, the highest that was tried",
    )


def test_where_none_is_good_the_usual_one_stays():
    comparison = made(strategies=["DataParallel"], rates="0.3,0.4")
    chosen = decided(comparison, None, math.nan)
    assert [entry.lr for entry in chosen.entries] == [0.1]
    assert chosen.search == ("DataParallel: 0.3 failed, 0.4 failed; none is good",)
