"""GradScaler: a step that one node skips is still a step, and exchanges stay where they belong."""

from functools import partial

import loops
import pytest
import torch
from torch import nn
from torch.amp import GradScaler

import flockstep as fs

STEPS = 8


def scaled_loop(strategy, *, blow_up=(), make_optimizer=loops.sgd, unscale=False):
    """AMP as users write it; at the steps named in ``blow_up``, node 1's gradient is infinite."""

    def body():
        model = loops.plain_model()
        optimizer = make_optimizer(model)
        scaler = GradScaler("cpu", init_scale=1024.0)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, strategy) as node:
            for k in range(STEPS):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                if fs.rank() == 1 and k in blow_up:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
                if unscale:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
            report = node.report()
        return loops.weights(model), report, scaler.get_scale()

    return body


def plain_loop(strategy, *, skip=(), make_optimizer=loops.sgd):
    """The same without AMP, where node 1 takes no step at the steps named in ``skip``."""

    def body():
        model = loops.plain_model()
        optimizer = make_optimizer(model)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, strategy):
            for k in range(STEPS):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                if fs.rank() == 1 and k in skip:
                    optimizer.zero_grad()
                optimizer.step()
        return loops.weights(model)

    return body


def fused(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("make_optimizer", [loops.sgd, fused])
@pytest.mark.parametrize("strategy", [fs.LocalSGD(period=3), fs.CELGC(period=3, gamma=0.01), fs.DataParallel()])
@pytest.mark.cases(check=4)
def test_without_infinities_scaling_changes_nothing(strategy, make_optimizer, unscale):
    scaled = fs.simulate(scaled_loop(strategy, make_optimizer=make_optimizer, unscale=unscale), nodes=2).results
    plain = fs.simulate(plain_loop(strategy, make_optimizer=make_optimizer), nodes=2).results
    for rank in range(2):
        for name in plain[rank]:
            torch.testing.assert_close(scaled[rank][0][name], plain[rank][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make_optimizer", [loops.sgd, fused])
@pytest.mark.parametrize("strategy", [fs.LocalSGD(period=3), fs.CELGC(period=3, gamma=0.01)])
def test_an_infinity_on_one_node_skips_its_step_and_no_synchronisation(strategy, make_optimizer):
    # One in the middle of a round, one at its very end: there a skipped hook would lose the mean.
    blow_up = (1, 5)
    results = fs.simulate(scaled_loop(strategy, blow_up=blow_up, make_optimizer=make_optimizer), nodes=2).results
    plain = fs.simulate(plain_loop(strategy, skip=blow_up, make_optimizer=make_optimizer), nodes=2).results
    assert [(report.steps, report.skipped) for _, report, _ in results.values()] == [(STEPS, 0), (STEPS, 2)]
    assert [scale for _, _, scale in results.values()] == [1024.0, 256.0]
    for name in plain[0]:
        torch.testing.assert_close(results[0][0][name], plain[0][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make_optimizer", [loops.sgd, fused])
def test_when_gradients_are_averaged_a_node_without_one_takes_the_step_of_the_others(make_optimizer):
    body = scaled_loop(fs.DataParallel(), blow_up=(2,), make_optimizer=make_optimizer)
    results = fs.simulate(body, nodes=3).results
    reports = [results[rank][1] for rank in range(3)]
    assert [report.skipped for report in reports] == [0, 0, 0]
    assert [report.counts.get("not finite", 0) for report in reports] == [0, 1, 0]
    assert [results[rank][2] for rank in range(3)] == [1024.0, 512.0, 1024.0]
    for rank in (1, 2):
        for name in results[0][0]:
            torch.testing.assert_close(results[0][0][name], results[rank][0][name])


@pytest.mark.slow
def test_on_processes():
    body = scaled_loop(fs.CELGC(period=3, gamma=0.01), blow_up=(1, 5))
    virtual, real = fs.simulate(body, nodes=2).results, fs.launch(body, nodes=2).results
    for rank in range(2):
        assert real[rank][1].skipped == virtual[rank][1].skipped == 2 * rank
        for name in virtual[rank][0]:
            torch.testing.assert_close(real[rank][0][name], virtual[rank][0][name])


def test_a_disabled_scaler_is_no_scaler():
    def body():
        model = loops.plain_model()
        optimizer = loops.sgd(model)
        scaler = GradScaler("cpu", enabled=False)
        with fs.join(model, optimizer, fs.LocalSGD(period=3)) as node:
            for _ in range(3):
                scaler.scale(model(torch.ones(1, 4)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            return node.report().steps

    assert partial(fs.simulate, nodes=2)(body).results == {0: 3, 1: 3}
