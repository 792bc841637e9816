import torch

from flockstep.cli.support import summary
from flockstep.trace import NodeReport, Row, Trace


def made(strategy, *, seconds, sent, losses, computing):
    rows = [Row(seconds * k / (len(losses) - 1), k, loss, sent, 0.0) for k, loss in enumerate(losses)]
    node = NodeReport(0, steps=len(losses), bytes_sent=sent, computing=computing, seconds=seconds)
    return Trace(strategy, rows, [node], {0: torch.zeros(1)})


BASELINE = made("DataParallel()", seconds=60.0, sent=8000, losses=[4.0, 3.0, 2.5], computing=6.0)


OTHER = made("CELGC(period=8, gamma=1.0)", seconds=10.0, sent=1000, losses=[4.0, 2.9, 2.6], computing=5.0)


def test_who_came_first():
    assert summary.race("32 virtual nodes", [BASELINE, OTHER]) == (
        "On 32 virtual nodes they reached a loss of 2.600 in this order: CELGC after 10 s, DataParallel after 54 s."
    )


def test_what_it_cost():
    assert summary.costs([BASELINE, OTHER]) == (
        "The least was sent by CELGC, 1 kB a node (DataParallel 8 kB a node); the lowest loss at the end is that of "
        "DataParallel, 2.500; computing took the largest share of the time of CELGC, 50% (DataParallel 10%)."
    )


def test_whoever_shows_the_same_is_named_too():
    again = made("HPSGD()", seconds=20.0, sent=1000, losses=[4.0, 2.5], computing=2.0)
    told = summary.costs([BASELINE, OTHER, again])
    assert "sent by CELGC and HPSGD, 1 kB a node (DataParallel" in told
    assert "that of DataParallel and HPSGD, 2.500;" in told
