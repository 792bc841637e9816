"""Numbers that are not finite: a gradient is skipped and counted, or raised; a model never leaves its node."""

import logging
import sys

import loops
import pytest
import torch
from loops import weights
from test_zoo import NAMED
from torch import nn

import flockstep as fs
from flockstep.backends.loop import buffers

NAN = float("nan")


def broken_loop(strategy, *, breaks, steps=6, **joining):
    """The usual loop; ``breaks(model, k, rank)`` does its harm between backward and step."""

    def body():
        model = loops.plain_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, strategy, **joining) as node:
            for k in range(steps):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                breaks(model, k, fs.rank())
                optimizer.step()
            report = node.report()
        return weights(model), report

    return body


def bad_gradient(model, k, rank):
    if k == 2 and rank == 1:
        model[2].weight.grad[0, 3] = NAN


def bad_weight(model, k, rank):
    if k == 2 and rank == 1:
        model[0].bias.data[1] = NAN


@pytest.mark.parametrize("name", NAMED)
def test_one_bad_gradient_poisons_nobody_and_is_counted(name, caplog):
    results = fs.simulate(broken_loop(NAMED[name], breaks=bad_gradient), nodes=2).results
    assert all(torch.isfinite(value).all() for model, _ in results.values() for value in model.values())
    counted = {rank: report.counts.get("not finite", 0) for rank, (_, report) in results.items()}
    # Who stands by in EPISODE++ computes a gradient that nobody asks for.
    assert counted == {0: 0, 1: int(name != "EpisodePlus")}
    told = [record.getMessage() for record in caplog.records if "is not finite" in record.getMessage()]
    assert len(told) == counted[1]
    assert all("node 1, step" in line and "the gradient of 2.weight is not finite" in line for line in told)


@pytest.mark.parametrize("name", ["LocalSGD", "DataParallel", "DiLoCo", "Swarm", "DPSGD", "SClipEF"])
def test_or_it_ends_the_loop_naming_node_step_and_tensor(name):
    with pytest.raises(fs.Diverged, match=r"node 1, step 3: the gradient of 2\.weight is not finite"):
        fs.simulate(broken_loop(NAMED[name], breaks=bad_gradient, not_finite="raise"), nodes=2)


def test_the_skipped_step_leaves_the_optimizer_alone():
    """By hand: node 1 takes no step, momentum included; models are averaged as ever."""
    results = fs.simulate(broken_loop(fs.LocalSGD(period=3), breaks=bad_gradient), nodes=2).results
    models = [loops.plain_model() for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in models]
    for k in range(6):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            x, y = loops.data(rank)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            if not (k == 2 and rank == 1):
                optimizer.step()
        if k in (2, 5):
            for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
                one.data = other.data = ((one.data + other.data) / 2).clone()
                other.data = one.data.clone()
    for name, value in weights(models[0]).items():
        torch.testing.assert_close(results[0][0][name], value)
    assert [results[rank][1].skipped for rank in (0, 1)] == [0, 1]


def test_where_gradients_are_averaged_it_counts_as_zero():
    results = fs.simulate(broken_loop(fs.DataParallel(), breaks=bad_gradient), nodes=2).results
    model = loops.plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for k in range(6):
        optimizer.zero_grad()
        for rank in (0, 1) if k != 2 else (0,):
            x, y = loops.data(rank)
            (nn.functional.mse_loss(model(x), y) / 2).backward()
        optimizer.step()
    for rank in (0, 1):
        for name, value in weights(model).items():
            torch.testing.assert_close(results[rank][0][name], value)


@pytest.mark.parametrize("name", [name for name in NAMED if name != "EpisodePlus"])
def test_a_model_that_is_not_finite_ends_its_node_and_is_named(name):
    with pytest.raises(fs.Diverged, match=r"the model of node 1 is not finite after step \d: 0\.bias"):
        fs.simulate(broken_loop(NAMED[name], breaks=bad_weight), nodes=2)


def test_a_model_that_nobody_asked_for_is_forgotten():
    """Who stands by in EPISODE++ brings nothing to the mean, and takes it."""
    results = fs.simulate(broken_loop(NAMED["EpisodePlus"], breaks=bad_weight), nodes=2).results
    assert all(torch.isfinite(value).all() for model, _ in results.values() for value in model.values())


@pytest.mark.slow
def test_on_processes_too():
    with pytest.raises(fs.FlockstepError, match=r"the model of node 1 is not finite after step 3: 0\.bias"):
        fs.launch(broken_loop(fs.LocalSGD(period=3), breaks=bad_weight), nodes=2)
    results = fs.launch(broken_loop(fs.LocalSGD(period=3), breaks=bad_gradient), nodes=2).results
    assert [results[rank][1].counts.get("not finite", 0) for rank in (0, 1)] == [0, 1]


def test_it_is_not_saved(tmp_path):
    model = loops.plain_model()
    optimizer = loops.sgd(model)
    with fs.join(model, optimizer, fs.LocalSGD(period=2)) as node:
        good = node.save(tmp_path)
        model[0].weight.data[0, 0] = NAN
        with pytest.raises(fs.Diverged, match=r"0\.weight"):
            node.save(tmp_path / "worse")
        with pytest.raises(fs.Diverged, match=r"0\.weight"):
            node.average_model()
        model[0].weight.data[0, 0] = 0.0
    assert good.exists()
    assert not (tmp_path / "worse").exists()


def test_it_is_not_shown():
    def body():
        model = loops.plain_model()
        with fs.join(model, loops.sgd(model), fs.LocalSGD(period=10**6)) as node:
            if node.rank == 1:
                model[0].weight.data[0, 0] = NAN
            node.meet()
            if node.rank == 0:
                with pytest.raises(fs.Diverged, match="the model of node 1 is not finite"):
                    node.average_model()
            node.meet()
            model[0].weight.data[0, 0] = 0.0

    fs.simulate(body, nodes=2)


def test_nobody_starts_from_one():
    def body():
        model = loops.plain_model()
        model[2].bias.data.fill_(NAN)
        with fs.join(model, loops.sgd(model), fs.LocalSGD(period=2)):
            pass

    with pytest.raises(fs.Diverged, match=r"the model of node 0 is not finite after step 0: 2\.bias"):
        fs.simulate(body, nodes=2)


def test_a_scaler_that_looks_for_its_scale_is_nothing_to_tell(caplog):
    model = loops.plain_model()
    optimizer = loops.sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with fs.join(model, optimizer, fs.LocalSGD(period=2), not_finite="raise") as node:
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 4)).sum() * 100).backward()
            scaler.step(optimizer)
            scaler.update()
        assert node.report().counts["not finite"] >= 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_statistics_that_a_bad_batch_broke_go_back_and_are_counted():
    def body():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        optimizer = loops.sgd(model)
        x, _ = loops.data(fs.rank())
        with fs.join(model, optimizer, fs.LocalSGD(period=2)) as node:
            for k in range(4):
                optimizer.zero_grad()
                model(x * (NAN if k == 1 and fs.rank() == 1 else 1.0)).square().sum().backward()
                optimizer.step()
            return weights(model), node.report().counts

    results = fs.simulate(body, nodes=2).results
    assert results[1][1]["statistics put back"] == 2
    assert "statistics put back" not in results[0][1]
    for name, value in results[0][0].items():
        assert torch.isfinite(value).all()
        torch.testing.assert_close(value, results[1][0][name])


def test_a_bad_policy_is_refused():
    model = loops.plain_model()
    with (
        pytest.raises(ValueError, match=r"join\.not_finite must be"),
        fs.join(model, loops.sgd(model), fs.LocalSGD(period=2), not_finite="ignore"),
    ):
        pass


def test_not_even_for_a_moment_does_the_vector_hold_what_a_bad_batch_left_in_a_buffer():
    """A newcomer's question may be answered by another thread at any moment: it once found infinity there."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    with fs.join(model, optimizer, fs.LocalSGD(period=2)) as node:

        def look(frame, event, argument):
            if frame.f_code.co_filename == buffers.__file__:
                found.append(bool(node.params.isfinite().all()))
                return look
            return None

        for k in range(3):
            optimizer.zero_grad()
            x = torch.randn(8, 4)
            x[0, 0] = torch.inf if k == 1 else 0.0
            model(x).sum().backward()
            before = sys.gettrace()
            sys.settrace(look)
            try:
                optimizer.step()
            finally:
                sys.settrace(before)
    assert len(found) > 30
    assert all(found)
    assert node.report().counts["statistics put back"] == 2
