"""What a stranger tried: loops that were trained wrong without a word, or ended with words of torch's own."""

import loops
import pytest
import torch
from loops import assert_same, weights
from torch import nn

import flockstep as fs


def trained(model, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


CLIPPED = fs.LocalSGD(period=2, clip=fs.clips.ClipNorm(max_norm=0.01))


@pytest.mark.parametrize("strategy", [fs.LocalSGD(period=2), CLIPPED], ids=["unseen", "clipped"])
@pytest.mark.parametrize("kept", [lambda g: g, lambda g: g.detach(), lambda g: g.data, lambda g: g.view(-1).numpy()])
def test_a_gradient_that_somebody_keeps_stays_what_it_was(kept, strategy):
    model = loops.plain_model()
    optimizer = loops.sgd(model)
    with fs.join(model, optimizer, strategy):
        for k in range(4):
            trained(model, optimizer, *loops.data(k))
            gradient = kept(model[0].weight.grad)
            before = torch.as_tensor(gradient).clone()
            trained(model, optimizer, *loops.data(k + 10))
            assert torch.equal(torch.as_tensor(gradient), before)


def test_gradients_that_no_strategy_looks_at_are_left_where_they_are():
    model = loops.plain_model()
    optimizer = loops.sgd(model)
    x, y = loops.data()
    with fs.join(model, optimizer, fs.LocalSGD(period=2)):
        nn.functional.mse_loss(model(x), y).backward()
        before = [parameter.grad for parameter in model.parameters()]
        optimizer.step()
        assert all(parameter.grad is own for parameter, own in zip(model.parameters(), before, strict=True))


def test_who_says_so_and_looks_all_the_same_is_told():
    class Looks:
        own_gradients = True

        async def run(self, node):
            async for _ in node.steps():
                g = await node.gradient(node.params)
                await node.step(g if float(g.sum()) > 0 else None)

    model = loops.plain_model()
    optimizer = loops.sgd(model)
    with pytest.raises(RuntimeError, match="meta"), fs.join(model, optimizer, Looks()):
        trained(model, optimizer, *loops.data())


def test_and_memory_is_used_again_where_nobody_does():
    model = loops.plain_model()
    optimizer = loops.sgd(model)
    with fs.join(model, optimizer, CLIPPED):
        trained(model, optimizer, *loops.data())
        place = model[0].weight.grad.data_ptr()
        for k in range(3):
            trained(model, optimizer, *loops.data(k))
            assert model[0].weight.grad.data_ptr() == place


def test_a_join_inside_another():
    def body():
        one, other = loops.plain_model(), loops.plain_model()
        with fs.join(one, loops.sgd(one), fs.LocalSGD(period=2)), fs.join(other, loops.sgd(other), fs.DataParallel()):
            pass

    with pytest.raises(fs.NodeFailed, match="a join inside another one cannot be simulated"):
        fs.simulate(body, nodes=2)
    fs.launch(body, nodes=2, on="threads")


def test_one_optimizer_in_two_joins():
    model = loops.plain_model()
    optimizer = loops.sgd(model)
    with (
        pytest.raises(ValueError, match="is in another join already"),
        fs.join(model, optimizer, fs.LocalSGD(period=2)),
        fs.join(model, optimizer, fs.LocalSGD(period=2)),
    ):
        pass
    # And afterwards it is free again.
    with fs.join(model, optimizer, fs.LocalSGD(period=2)):
        trained(model, optimizer, *loops.data())


def test_an_optimizer_around_another():
    """As accelerate's: the one that was joined steps through one that was not."""

    class Around(torch.optim.Optimizer):
        def __init__(self, inside):
            self.inside = inside
            super().__init__(inside.param_groups, {})

        def step(self, closure=None):
            self.inside.step()

    model = loops.plain_model()
    with fs.join(model, Around(loops.sgd(model)), fs.LocalSGD(period=2)) as node:
        pass
    other = loops.plain_model()
    inside = loops.sgd(other)
    around = Around(inside)
    with fs.join(other, around, fs.LocalSGD(period=2)) as node:
        for k in range(3):
            trained(other, around, *loops.data(k))
        assert node.report().steps == 3


def test_a_step_inside_backward():
    def body():
        model = loops.plain_model()
        optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        with fs.join(model, list(optimizers.values()), fs.LocalSGD(period=1)):
            for k in range(3):
                x, y = loops.data(fs.rank() + k)
                nn.functional.mse_loss(model(x), y).backward()
        return weights(model)

    with pytest.raises(fs.NodeFailed, match="cannot be taken on virtual nodes"):
        fs.simulate(body, nodes=3)
    results = fs.launch(body, nodes=3, on="threads").results
    assert_same(results[0], results[1])


def test_a_whole_iteration_under_autocast():
    def body():
        model = loops.plain_model()
        optimizer = loops.sgd(model)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, fs.LocalSGD(period=2)):
            for _ in range(4):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    trained(model, optimizer, x, y)
                    assert torch.is_autocast_enabled("cpu")
                assert not torch.is_autocast_enabled("cpu")
        return weights(model)

    results = fs.simulate(body, nodes=2).results
    assert_same(results[0], results[1])


def test_waiting_in_inference_mode():
    def body():
        model = loops.plain_model()
        with fs.join(model, loops.sgd(model), fs.LocalSGD(period=2)) as node, torch.inference_mode():
            node.average_model()

    with pytest.raises(fs.NodeFailed, match=r"cannot wait inside of torch\.inference_mode"):
        fs.simulate(body, nodes=2)


def test_a_layer_frozen_in_the_middle_stands_still():
    def body():
        model = loops.plain_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)
        with fs.join(model, optimizer, fs.DataParallel()):
            trained(model, optimizer, *loops.data(fs.rank()))
            model[0].requires_grad_(False)
            still = model[0].weight.clone()
            trained(model, optimizer, *loops.data(fs.rank()))
            assert torch.equal(model[0].weight, still)

    fs.simulate(body, nodes=2)


def test_a_buffer_that_begins_to_move_late_and_unseen_is_averaged_at_the_end():
    def body():
        model = loops.plain_model()
        model.register_buffer("codes", torch.zeros(3))
        optimizer = loops.sgd(model)
        with fs.join(model, optimizer, fs.LocalSGD(period=4)):
            for k in range(13):
                trained(model, optimizer, *loops.data(fs.rank()))
                if k == 11:
                    model.codes.data += fs.rank() + 1.0
        return model.codes.clone()

    results = fs.simulate(body, nodes=2).results
    assert results[0].tolist() == results[1].tolist() == [1.5] * 3


def test_schedulers_that_count_milestones_survive(tmp_path):
    def run(steps, **joining):
        model = loops.plain_model()
        optimizer = loops.sgd(model)
        falls = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.1)
        with fs.join(model, optimizer, fs.LocalSGD(period=2), stateful=[falls], **joining) as node:
            for _ in range(node.step_count, steps):
                trained(model, optimizer, *loops.data())
                falls.step()
        return weights(model)

    whole = run(6)
    run(3, resume=tmp_path, save_every=3)
    assert_same(whole, run(6, resume=tmp_path))


def test_a_model_that_cannot_be_copied():
    model = loops.plain_model()
    with fs.join(model, loops.sgd(model), fs.LocalSGD(period=2)) as node:
        model.last = model(torch.ones(1, 4))
        with pytest.raises(TypeError, match=r"give average_model\(into=\.\.\.\) another model"):
            node.average_model()
        other = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
        assert node.average_model(into=other) is other
        assert_same(weights(model), weights(other))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.thorough
def test_a_compiled_step():
    model = loops.plain_model()
    optimizer = loops.sgd(model)
    step = torch.compile(optimizer.step, backend="eager")
    with fs.join(model, optimizer, fs.LocalSGD(period=2)) as node:
        for k in range(3):
            optimizer.zero_grad()
            x, y = loops.data(k)
            nn.functional.mse_loss(model(x), y).backward()
            step()
        assert node.report().steps == 3
