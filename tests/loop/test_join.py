"""One line in the user's own loop: nothing else changes, whatever the loop does."""

import copy
from dataclasses import dataclass
from functools import partial

import loops
import pytest
import torch
from loops import alone, assert_same, train, weights
from torch import nn

import flockstep as fs

FAR = fs.LocalSGD(period=10**6)


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=0.01, **options)


def tied_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))
    model[2].weight = model[0].weight
    return model


def frozen_model():
    model = loops.plain_model()
    model[0].weight.requires_grad_(False)
    return model


class Sometimes(nn.Module):
    """One of its layers takes part in every other forward only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.calls = nn.Linear(4, 1), nn.Linear(4, 1), 0

    def forward(self, x):
        self.calls += 1
        return self.one(x) + (self.two(x) if self.calls % 2 else 0.0)


def normed_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))


def mixed_dtypes():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.low, self.high = nn.Linear(4, 4, dtype=torch.bfloat16), nn.Linear(4, 1)

        def forward(self, x):
            return self.high(self.low(x.bfloat16()).float())

    model = Mixed()
    # The loops ask the first parameter what data to feed: the wide one.
    model._modules = dict(reversed(model._modules.items()))
    return model


def two_groups(model):
    first, *rest = model.parameters()
    return torch.optim.SGD([{"params": [first], "lr": 0.2}, {"params": rest, "weight_decay": 0.1}], lr=0.05)


def accumulating(model, optimizer, x, y, k):
    optimizer.zero_grad()
    for half in (slice(0, 4), slice(4, 8)):
        (nn.functional.mse_loss(model(x[half]), y[half]) / 2).backward()
    optimizer.step()


LOOPS = {
    "sgd": {},
    "momentum": {"make_optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True)},
    "adamw": {"make_optimizer": adamw},
    "adamw fused": {"make_optimizer": partial(adamw, fused=True)},
    "adamw foreach": {"make_optimizer": partial(adamw, foreach=True)},
    "rmsprop": {"make_optimizer": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01)},
    "adagrad": {"make_optimizer": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05)},
    "two groups": {"make_optimizer": two_groups},
    "schedule": {"schedule": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12)},
    "one cycle": {"schedule": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=13)},
    "accumulation": {"step": accumulating},
    "tied": {"make_model": tied_model},
    "frozen": {"make_model": frozen_model},
    "no gradient at times": {"make_model": Sometimes, "make_optimizer": adamw},
    "batch norm": {"make_model": normed_model},
    "bf16": {"make_model": partial(loops.plain_model, dtype=torch.bfloat16)},
    "float64": {"make_model": partial(loops.plain_model, dtype=torch.float64)},
    "mixed dtypes": {"make_model": mixed_dtypes},
}


@pytest.mark.parametrize("name", LOOPS)
def test_alone_a_joined_loop_is_the_loop_without_the_line_bit_for_bit(name):
    model, optimizer = alone(**LOOPS[name])
    joined, joined_optimizer, report = train(FAR, **LOOPS[name])
    assert_same(weights(model), weights(joined))
    for one, other in zip(optimizer.state.values(), joined_optimizer.state.values(), strict=True):
        for key, value in one.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[key])), key
    assert report.steps == 12


@pytest.mark.parametrize("name", ["adamw fused", "two groups", "tied", "frozen", "batch norm", "bf16", "mixed dtypes"])
def test_together_nodes_end_alike(name):
    trace = fs.simulate(lambda: weights(train(fs.LocalSGD(period=5), **LOOPS[name])[0]), nodes=3)
    for rank in (1, 2):
        assert_same(trace.results[0], trace.results[rank])


def test_identical_data_is_training_alone():
    same = partial(loops.data, 0)

    def body():
        loops.data, before = lambda rank=0: same(), loops.data
        try:
            return weights(train(fs.DataParallel(), make_optimizer=adamw)[0])
        finally:
            loops.data = before

    trace = fs.simulate(body, nodes=1)
    assert_same(trace.results[0], weights(alone(make_optimizer=adamw)[0]))


def test_what_the_user_sees_of_the_model_does_not_change():
    model = normed_model()
    before = weights(model)
    names = [name for name, _ in model.named_parameters()]
    identity = [id(parameter) for parameter in model.parameters()]
    with fs.join(model, loops.sgd(model), FAR):
        assert_same(before, weights(model))
        assert [name for name, _ in model.named_parameters()] == names
        assert [id(parameter) for parameter in model.parameters()] == identity
    # Afterwards every tensor has memory of its own again, as savers that refuse shared memory ask for.
    pointers = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    assert len(pointers) == len(before)


def test_weights_of_node_0_go_to_all_and_buffers_too():
    def body():
        torch.manual_seed(fs.rank())
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model[1].running_mean.fill_(float(fs.rank() + 1))
        with fs.join(model, loops.sgd(model), FAR):
            return weights(model)

    trace = fs.simulate(body, nodes=3)
    assert trace.results[0]["1.running_mean"].tolist() == [1.0, 1.0]
    for rank in (1, 2):
        assert_same(trace.results[0], trace.results[rank])


def test_float_buffers_are_averaged_and_integer_ones_are_not():
    def body():
        model = normed_model()
        optimizer = loops.sgd(model)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, fs.LocalSGD(period=2)):
            for _ in range(2 + fs.rank() * 0):
                for _ in range(1 + fs.rank()):
                    loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return weights(model)

    results = fs.simulate(body, nodes=2).results
    assert torch.equal(results[0]["1.running_mean"], results[1]["1.running_mean"])
    assert [int(results[rank]["1.num_batches_tracked"]) for rank in (0, 1)] == [2, 4]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("shape", "node 0 has '0.weight (3, 2) torch.float32', node 1 has '0.weight (4, 2) torch.float32'"),
        ("name", "node 0 has '0.weight (3, 2) torch.float32', node 1 has 'other.weight (3, 2) torch.float32'"),
        ("dtype", "node 1 has '0.weight (3, 2) torch.float64'"),
        ("more", "only node 1 has '1.weight (1, 3) torch.float32'"),
        ("strategy", "node 0 has 'strategy LocalSGD(period=2)', node 1 has 'strategy LocalSGD(period=3)'"),
    ],
)
def test_what_differs_at_the_door_is_named(change, sentence):
    def body():
        other = fs.rank() == 1
        layers = [nn.Linear(2, 4 if other and change == "shape" else 3)]
        if other and change == "more":
            layers.append(nn.Linear(3, 1))
        model = nn.Sequential(*layers)
        if other and change == "dtype":
            model.double()
        if other and change == "name":
            model = nn.ModuleDict({"other": layers[0]})
        period = 3 if other and change == "strategy" else 2
        with fs.join(model, loops.sgd(model), fs.LocalSGD(period=period)):
            pass

    with pytest.raises(fs.Mismatch) as caught:
        fs.simulate(body, nodes=2)
    assert "nodes 0 and 1 do not train the same" in str(caught.value)
    assert sentence in str(caught.value)


def test_the_average_model_is_for_evaluation_and_leaves_training_alone():
    def body():
        model = normed_model()
        optimizer = loops.sgd(model)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, FAR) as node:
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
            mine = weights(model)
            with torch.no_grad():
                average = weights(node.average_model()) if node.rank == 0 else None
            assert_same(mine, weights(model))
        return mine, average

    results = fs.simulate(body, nodes=3, network=fs.Network(bandwidth="1 Mbit/s", latency="5 ms")).results
    for name in ("0.weight", "1.running_var"):
        mean = torch.stack([results[rank][0][name] for rank in range(3)]).mean(0)
        torch.testing.assert_close(results[0][1][name], mean)


@pytest.mark.slow
def test_the_average_model_on_processes():
    def body():
        model = loops.plain_model()
        optimizer = loops.sgd(model)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, fs.CELGC(period=2, gamma=1.0)) as node:
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
            return weights(model), weights(node.average_model()) if node.rank == 0 else None

    results = fs.launch(body, nodes=3).results
    mean = torch.stack([results[rank][0]["0.weight"] for rank in range(3)]).mean(0)
    torch.testing.assert_close(results[0][1]["0.weight"], mean)


def test_clipping_measures_each_group_with_its_own_learning_rate():
    def body(gamma):
        model = loops.plain_model()
        start = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])
        optimizer = torch.optim.SGD(
            [{"params": model[0].parameters(), "lr": 3.0}, {"params": model[2].parameters()}], lr=0.5
        )
        x, y = loops.data()
        with fs.join(model, optimizer, fs.CELGC(period=10, gamma=gamma)) as node:
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            clipped = node.report().counts.get("clipped", 0)
        end = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        return float((end - start).norm()), clipped

    unclipped, never = body(1e6)
    assert never == 0
    length, once = body(0.01)
    assert (length, once) == (pytest.approx(0.01, rel=1e-4), 1)
    assert unclipped > 0.05


def test_an_exception_in_the_loop_ends_all_and_does_not_hang():
    def body():
        model = loops.plain_model()
        optimizer = loops.sgd(model)
        x, y = loops.data()
        with fs.join(model, optimizer, fs.LocalSGD(period=1)):
            for k in range(5):
                if k == 3 and fs.rank() == 1:
                    raise KeyError("no more")
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()

    for run in (fs.simulate, partial(fs.launch, on="threads")):
        with pytest.raises(fs.NodeFailed, match=r"node 1: KeyError: 'no more'"):
            run(body, nodes=3)


def test_loops_of_different_length_are_a_deadlock_that_says_so():
    def body():
        model = loops.plain_model()
        optimizer = loops.sgd(model)
        x, y = loops.data()
        with fs.join(model, optimizer, fs.LocalSGD(period=1)):
            for _ in range(3 + fs.rank()):
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()

    with pytest.raises(fs.Deadlock, match=r"node 1 waits in mean\('model'\), round 3"):
        fs.simulate(body, nodes=2)
    with pytest.raises(fs.Deadlock, match=r"node 1 waits in mean\('model'\), round 3; node 0 has returned"):
        fs.launch(body, nodes=2, on="threads")


def test_two_joins_one_after_the_other():
    def body():
        first = weights(train(fs.LocalSGD(period=2), steps=3)[0])
        second = weights(train(fs.DataParallel(), make_model=normed_model, steps=3)[0])
        return first, second

    for run in (fs.simulate, partial(fs.launch, on="threads")):
        results = run(body, nodes=2).results
        assert_same(results[0][0], results[1][0])
        torch.testing.assert_close(results[0][1]["0.weight"], results[1][1]["0.weight"])


def test_a_second_join_begins_at_its_own_first_step():
    """On virtual nodes it once went on counting: exchanges came at other steps, and what was kept was the first's."""

    def once():
        model, _, report = train(fs.DiLoCo(period=4), steps=6)
        return report.steps, weights(model)

    def after_another():
        train(fs.DiLoCo(period=4), steps=3)
        return once()

    one, two = (fs.simulate(body, nodes=2).results for body in (once, after_another))
    for rank in range(2):
        assert one[rank][0] == two[rank][0] == 6
        assert_same(one[rank][1], two[rank][1])


def test_an_optimizer_with_a_closure_is_refused():
    model = loops.plain_model()
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(NotImplementedError, match="closure"), fs.join(model, optimizer, FAR):
        optimizer.step(lambda: model(torch.ones(1, 4)).sum())


def test_a_strategy_that_wants_gradients_elsewhere_is_refused():
    class Elsewhere:
        async def run(self, node):
            async for _ in node.steps():
                await node.step(await node.gradient(node.params + 1))

    with pytest.raises(NotImplementedError, match="at another point than the model's own"):
        train(Elsewhere())


def test_hooks_are_gone_after_the_with():
    model = loops.plain_model()
    optimizer = loops.sgd(model)
    with fs.join(model, optimizer, FAR):
        pass
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert torch.amp.GradScaler.step.__module__ == "torch.amp.grad_scaler"


def test_parameters_given_other_memory_are_taken_back():
    def body():
        model = loops.plain_model()
        optimizer = loops.sgd(model)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, fs.LocalSGD(period=1)):
            nn.functional.mse_loss(model(x), y).backward()
            model[0].weight.data = model[0].weight.data.clone() * 2
            optimizer.step()
        return weights(model)

    results = fs.simulate(body, nodes=2).results
    assert_same(results[0], results[1])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda m: fs.join(m, loops.sgd(m), fs.LocalSGD), "with parentheses"),
        (lambda m: fs.join(m, "sgd", FAR), "join.optimizer must be a torch optimizer, or a list of them, got 'sgd'"),
        (lambda m: fs.join(m, loops.sgd(loops.plain_model()), FAR), "holds a parameter that join.model does not have"),
        (lambda m: fs.join(m, loops.sgd(m), FAR, save_every=5), "give both"),
        (
            lambda m: fs.join(m, loops.sgd(m), FAR, resume="x", save_every=0),
            "join.save_every must be at least 1, got 0",
        ),
        (lambda m: fs.join(m.requires_grad_(False), loops.sgd(m), FAR), "no trainable parameters"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(make, sentence):
    with pytest.raises((ValueError, TypeError)) as caught, make(loops.plain_model()):
        pass
    assert sentence in str(caught.value)


def test_a_copy_of_the_model_made_inside_is_a_plain_model():
    model = loops.plain_model()
    with fs.join(model, loops.sgd(model), FAR):
        copied = copy.deepcopy(model)
    assert_same(weights(model), weights(copied))


# What the compiler makes of graphs is the same; only kernels are not, and they take a minute of a core.
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)])
def test_torch_compile(backend):
    def body():
        model = loops.plain_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        compiled = torch.compile(model, backend=backend)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, fs.LocalSGD(period=2)):
            for _ in range(4):
                optimizer.zero_grad()
                nn.functional.mse_loss(compiled(x), y).backward()
                optimizer.step()
        return weights(model)

    def eager():
        model = loops.plain_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, fs.LocalSGD(period=2)):
            for _ in range(4):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
        return weights(model)

    compiled, plain = (fs.launch(train, nodes=2).results for train in (body, eager))
    assert_same(compiled[0], compiled[1])
    for name in plain[0]:
        torch.testing.assert_close(compiled[0][name], plain[0][name], rtol=1e-4, atol=1e-5)


def test_frozen_weights_and_integer_buffers_of_node_0_go_to_all_too():
    def body():
        torch.manual_seed(fs.rank())
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model[0].weight.requires_grad_(False)
        model[1].num_batches_tracked.fill_(5 + fs.rank())
        with fs.join(model, loops.sgd(model), FAR):
            return weights(model)

    trace = fs.simulate(body, nodes=3)
    assert int(trace.results[2]["1.num_batches_tracked"]) == 5
    for rank in (1, 2):
        assert_same(trace.results[0], trace.results[rank])


def test_the_memory_of_gradients_is_used_again_unless_somebody_holds_them():
    model, used, held = loops.plain_model(), [], None
    optimizer = loops.sgd(model)
    x, y = loops.data()
    with fs.join(model, optimizer, fs.CELGC(period=100, gamma=1.0)):
        for k in range(8):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            gradient = model[0].weight.grad
            used.append(gradient.untyped_storage().data_ptr())
            if k == 3:
                held, before = gradient, gradient.clone()
            del gradient
    assert used[:4] == [used[0]] * 4
    assert used[4:] == [used[4]] * 4
    assert used[4] != used[0]
    assert torch.equal(held, before)


def test_gradients_that_are_zeroed_in_place_accumulate_as_they_do_alone():
    def step(model, optimizer, x, y, k):
        optimizer.zero_grad(set_to_none=False)
        for half in (slice(0, 4), slice(4, 8)):
            nn.functional.mse_loss(model(x[half]), y[half]).backward()
        optimizer.step()

    joined, _, _ = loops.train(fs.LocalSGD(period=5), step=step)
    bare, _ = loops.alone(step=step)
    loops.assert_same(loops.weights(joined), loops.weights(bare))


def test_a_strategy_may_keep_the_gradient_it_was_given():
    """Here it steps with another vector, and what it was given stays as it was."""

    class Lagged:
        async def run(self, node):
            last = torch.zeros_like(node.params)
            async for _ in node.steps():
                g = await node.gradient(node.params)
                copy = g.clone()
                await node.step(last)
                assert torch.equal(g, copy)
                last = g

    model, _, report = loops.train(Lagged(), steps=5)
    assert report.steps == 5
    assert all(p.isfinite().all() for p in model.parameters())


def test_gradients_of_mixed_dtypes_are_clipped_too():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1).bfloat16())
    before = [p.detach().clone().double() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with fs.join(model, optimizer, fs.CELGC(period=1, gamma=0.5)) as node:
        model[1](model[0](torch.full((2, 4), 30.0)).bfloat16()).float().square().mean().backward()
        optimizer.step()
        assert node.report().counts["clipped"] == 1
    moved = sum(
        float((p.detach().double() - b).square().sum()) for p, b in zip(model.parameters(), before, strict=True)
    )
    assert moved**0.5 == pytest.approx(0.5, rel=0.02)


def test_what_a_strategy_does_to_buffers_in_a_gradient_is_gone_with_the_step():
    @dataclass(frozen=True)
    class Scribbles:
        async def run(self, node):
            async for _ in node.steps():
                g = await node.gradient(node.params)
                node.count("nothing", int(node.flat.buffers(g).count_nonzero()))
                g.add_(1.0)
                await node.step(g)
                del g

    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fs.join(model, optimizer, Scribbles()) as node:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 2)).square().mean().backward()
            optimizer.step()
        assert node.report().counts["nothing"] == 0
