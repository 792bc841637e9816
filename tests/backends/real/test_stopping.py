"""A run that is told to stop: nodes take no more steps, end in order, and what they did is there."""

from functools import partial

import pytest
import torch

import flockstep as fs
from flockstep.workloads.convex import Quadratics

ENDLESS = 10**9
CREW = fs.DPSGD(threads=2, period=3)
PROBLEM = Quadratics(dim=6, heterogeneity=0.1, noise=0.01, condition=1.0)


def stopped_at_the_second_row(strategy, *, nodes, steps, on):
    rows = []
    return fs.launch(
        strategy,
        PROBLEM,
        nodes=nodes,
        steps=steps,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        on=on,
        record_every=40,
        on_row=rows.append,
        stop=lambda: len(rows) > 1,
        timeout=60,
    )


def check(trace, nodes):
    assert sorted(trace.models) == list(range(nodes))
    assert all(node.steps < ENDLESS for node in trace.nodes)
    assert max(node.steps for node in trace.nodes) >= 40
    # Not how good: what came late may have been added a moment ago.
    for model in trace.models.values():
        assert torch.isfinite(model).all()
        assert not torch.equal(model, PROBLEM.start())


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize(
    "strategy", [fs.DPSGD(), pytest.param(CREW, marks=pytest.mark.slow), fs.Swarm(period=2)], ids=str
)
@pytest.mark.parametrize("steps", [ENDLESS, fs.Budget(steps=ENDLESS)], ids=["each", "together"])
def test_threads_have_done_what_they_did(strategy, nodes, steps):
    if isinstance(strategy, fs.Swarm) and nodes == 1:
        pytest.skip("a swarm of one has nobody to meet")
    check(stopped_at_the_second_row(strategy, nodes=nodes, steps=steps, on="threads"), nodes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [(fs.DPSGD(), 1), (CREW, 2), (fs.Swarm(period=2), 3)],
    ids=str,
)
@pytest.mark.cases(test=1)
def test_so_have_processes(strategy, nodes):
    check(stopped_at_the_second_row(strategy, nodes=nodes, steps=fs.Budget(steps=ENDLESS), on="processes"), nodes)


@pytest.mark.slow
@pytest.mark.parametrize("on", ["threads", "processes"])
def test_one_that_is_told_before_it_begins_takes_no_step(on):
    trace = fs.launch(fs.DPSGD(), PROBLEM, nodes=2, steps=fs.Budget(steps=1000), on=on, stop=lambda: True)
    assert [node.steps for node in trace.nodes] == [0, 0]
    assert len(trace.rows) >= 1


def test_one_that_is_never_told_takes_all():
    trace = fs.launch(fs.DPSGD(), PROBLEM, nodes=2, steps=20, on="threads", stop=lambda: False)
    assert [node.steps for node in trace.nodes] == [20, 20]


def test_nodes_that_wait_for_each_other_cannot_be_stopped_one_by_one():
    for program in ((fs.LocalSGD(period=2), PROBLEM), (lambda: None,)):
        with pytest.raises(ValueError, match=r"launch\.stop is for one-sided strategies"):
            fs.launch(*program, nodes=2, on="threads", stop=lambda: False)
