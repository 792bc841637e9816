import pytest
import torch

from flockstep.cli.support import summary
from flockstep.trace import NodeReport, Row, Trace


def made(strategy, *, seconds, sent, losses, computing):
    rows = [Row(seconds * k / (len(losses) - 1), k, loss, sent, 0.0) for k, loss in enumerate(losses)]
    node = NodeReport(0, steps=len(losses), bytes_sent=sent, computing=computing, seconds=seconds)
    return Trace(strategy, rows, [node], {0: torch.zeros(1)})


BASELINE = made("DataParallel()", seconds=60.0, sent=8000, losses=[4.0, 3.0, 2.5], computing=6.0)


def test_a_cheaper_run():
    other = made("CELGC(period=8, gamma=1.0)", seconds=10.0, sent=1000, losses=[4.0, 2.9, 2.6], computing=5.0)
    assert summary.compare("32 virtual nodes", BASELINE, other) == (
        "Next to DataParallel on 32 virtual nodes, CELGC sent 8.0 times fewer bytes and took 6.0 times less time; "
        "its loss ended at 2.600, that of DataParallel at 2.500."
    )
    assert summary.race(BASELINE, other) == (
        "To a loss of 2.600 it took DataParallel 54 s and CELGC 10 s. "
        "DataParallel computed for 10% of its time and CELGC for 50%: the rest went into talking and waiting."
    )


def test_a_dearer_run():
    other = made("Episode(period=8, gamma=1.0)", seconds=66.0, sent=24000, losses=[4.0, 2.5], computing=5.0)
    told = summary.compare("2 real processes", BASELINE, other)
    assert "Episode sent 3.0 times more bytes and took 10% more time" in told


@pytest.mark.parametrize(
    ("new", "old", "words"),
    [
        (100, 100, "as many"),
        (102, 100, "as many"),
        (98, 100, "as many"),
        (0, 0, "as many"),
        (50, 100, "2.0 times fewer"),
        (80, 100, "20% fewer"),
        (150, 100, "50% more"),
        (1000, 10, "100 times more"),
        (0, 10, "no"),
        (10, 0, "more"),
    ],
)
def test_amounts(new, old, words):
    assert summary.amount(new, old, below="fewer", above="more", alike="as many") == words
