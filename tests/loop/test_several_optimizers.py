"""Several optimizers on one model: a step of the strategy is one step of each."""

import loops
import pytest
import torch
from loops import assert_same, weights
from torch import nn

import flockstep as fs


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1))
    muon = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.02)
    return model, muon, torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=0.02)


def trained(strategy, steps, **joining):
    model, muon, adamw = made()
    x, y = loops.data(fs.rank())
    with fs.join(model, [muon, adamw], strategy, **joining) as node:
        for _ in range(node.step_count, steps):
            model.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            muon.step()
            adamw.step()
        report = node.report()
    return weights(model), report


@pytest.mark.parametrize("strategy", [fs.LocalSGD(period=2), fs.CELGC(period=2, gamma=0.001), fs.HPSGD(period=2)])
def test_checkpoints_hold_all_of_them(strategy, tmp_path):
    whole, report = trained(strategy, 7)
    assert report.steps == 7
    trained(strategy, 4, resume=tmp_path, save_every=4)
    assert_same(whole, trained(strategy, 7, resume=tmp_path)[0])


def test_a_checkpoint_of_one_is_not_taken_for_one_of_two(tmp_path):
    model = made()[0]
    with fs.join(model, loops.sgd(model), fs.LocalSGD(period=2)) as node:
        node.save(tmp_path)
    with pytest.raises(ValueError, match=r"this checkpoint is of 1 optimizer\(s\), join\.optimizer has 2"):
        trained(fs.LocalSGD(period=2), 4, resume=tmp_path)


def test_nodes_end_alike_and_a_clip_sees_all_of_them():
    results = fs.simulate(lambda: trained(fs.CELGC(period=3, gamma=1e-6), 6), nodes=2).results
    assert_same(results[0][0], results[1][0])
    assert results[0][1].counts["clipped"] == 6


def test_the_loop_may_not_end_between_two_of_them():
    model, muon, adamw = made()
    with (
        pytest.raises(RuntimeError, match=r"the loop ended before optimizer 1 \(AdamW\) had stepped"),
        fs.join(model, [muon, adamw], fs.LocalSGD(period=2)),
    ):
        model(torch.ones(1, 4)).sum().backward()
        muon.step()


def scaled_pair(strategy, *, set_to_none=True, early=False):
    """A GAN under a GradScaler, as users write it."""

    def body():
        torch.manual_seed(0)
        model = nn.ModuleDict({"makes": nn.Linear(4, 1), "judges": nn.Linear(1, 1)})
        judge = torch.optim.SGD(model["judges"].parameters(), lr=0.05)
        maker = torch.optim.SGD(model["makes"].parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        x, y = loops.data(fs.rank())
        with fs.join(model, [judge, maker], strategy):
            for _ in range(4):
                if early:
                    maker.zero_grad(set_to_none=set_to_none)
                judge.zero_grad(set_to_none=set_to_none)
                fake = model["makes"](x)
                scaler.scale((model["judges"](fake.detach()) - model["judges"](y)).square().mean()).backward()
                scaler.step(judge)
                maker.zero_grad(set_to_none=set_to_none)
                scaler.scale(-model["judges"](fake).mean()).backward()
                scaler.step(maker)
                scaler.update()
        return weights(model)

    return body


def pair_by_hand(period):
    torch.manual_seed(0)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(nn.ModuleDict({"makes": nn.Linear(4, 1), "judges": nn.Linear(1, 1)}))
    for k in range(4):
        for rank, model in enumerate(models):
            x, y = loops.data(rank)
            fake = model["makes"](x)
            loss = (model["judges"](fake.detach()) - model["judges"](y)).square().mean()
            names = list(model["judges"].parameters())
            for p, g in zip(names, torch.autograd.grad(loss, names), strict=True):
                p.data -= 0.05 * g
            names = list(model["makes"].parameters())
            for p, g in zip(names, torch.autograd.grad(-model["judges"](model["makes"](x)).mean(), names), strict=True):
                p.data -= 0.05 * g
        if (k + 1) % period == 0:
            for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
                one.data = (one.data + other.data) / 2
                other.data = one.data.clone()
    return weights(models[0])


@pytest.mark.parametrize(("set_to_none", "early"), [(True, False), (True, True), (False, False)])
def test_a_pair_that_takes_turns_under_a_scaler(set_to_none, early):
    results = fs.simulate(scaled_pair(fs.LocalSGD(period=2), set_to_none=set_to_none, early=early), nodes=2).results
    by_hand = pair_by_hand(2)
    for rank in (0, 1):
        for name, value in by_hand.items():
            torch.testing.assert_close(results[rank][name], value, rtol=1e-4, atol=1e-5)


def test_gradients_that_a_scaler_would_divide_twice_or_never_are_refused():
    with pytest.raises(fs.NodeFailed, match="a GradScaler cannot tell"):
        fs.simulate(scaled_pair(fs.LocalSGD(period=2), set_to_none=False, early=True), nodes=2)


@pytest.mark.parametrize("strategy", [fs.CELGC(period=2, gamma=1.0), fs.Episode(period=2, gamma=1.0)])
def test_clips_measure_groups_that_do_not_train_as_nothing(strategy):
    """A frozen group with a rate of its own, and an empty one."""

    def body(extra):
        model = loops.plain_model()
        model.register_parameter("still", nn.Parameter(torch.ones(3), requires_grad=False))
        groups = [{"params": list(model[0].parameters()), "lr": 0.2}, {"params": list(model[2].parameters())}]
        if extra:
            groups += [{"params": [model.still], "lr": 3.0}, {"params": [], "lr": 7.0}]
        optimizer = torch.optim.SGD(groups, lr=0.05)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, strategy):
            for _ in range(6):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), 30 * y).backward()
                optimizer.step()
        return weights(model)

    plain, more = (fs.simulate(lambda extra=extra: body(extra), nodes=2).results for extra in (False, True))
    # Not to the bit: a longer vector's norm may be summed in another order, as the processor likes.
    for rank in (0, 1):
        torch.testing.assert_close(plain[rank], more[rank], rtol=1e-5, atol=1e-6)


def test_adamw_decays_on_all_nodes_or_on_none():
    """A gradient that is zero here and None there: the same step is taken on both."""

    def body():
        torch.manual_seed(0)
        model = nn.ModuleDict({"used": nn.Linear(2, 1), "idle": nn.Linear(2, 1)})
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        with fs.join(model, optimizer, fs.DataParallel()):
            for _ in range(3):
                optimizer.zero_grad()
                loss = model["used"](torch.ones(1, 2)).sum()
                if fs.rank() == 0:
                    loss = loss + 0.0 * model["idle"](torch.ones(1, 2)).sum()
                loss.backward()
                optimizer.step()
        return weights(model)

    results = fs.simulate(body, nodes=2).results
    assert_same(results[0], results[1])


def test_a_new_gradient_at_an_old_address_is_new():
    """Python gives addresses again: a gradient that was stepped with is known by itself, not by where it lay."""
    from flockstep.backends.loop.stepping import _marks, _same

    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.ones(3)
    marks = _marks([parameter])
    assert _same(marks, [parameter])
    parameter.grad = None
    assert not _same(marks, [parameter])
    parameter.grad = torch.ones(3)
    assert not _same(marks, [parameter])
    parameter.grad.add_(1)
    assert not _same(_marks([parameter])[:0], [parameter])
