"""Work that all nodes share: it is spent to the end, and not much further, whoever is there."""

import functools
import itertools

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import flockstep as fs
from flockstep.workloads.convex import Quadratics

SGD = functools.partial(torch.optim.SGD, lr=0.05)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "Budget needs steps or samples"),
        ({"steps": 3, "samples": 3}, "Budget needs steps or samples"),
        ({"steps": 0}, "Budget.steps must be at least 1, got 0"),
        ({"samples": 10}, "Budget.batch says how many samples a step takes"),
        ({"steps": 10, "batch": 2}, "Budget.batch says how many samples a step takes"),
        ({"samples": 10, "batch": 0}, "Budget.batch must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        fs.Budget(**arguments)


def backends():
    return {
        "simulator": functools.partial(fs.simulate, compute=fs.Compute(step="10 ms", spread=0.3)),
        "threads": functools.partial(fs.launch, on="threads"),
    }


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_nodes_that_wait_take_equal_shares(backend, nodes):
    trace = backends()[backend](fs.LocalSGD(period=4), Quadratics(), nodes=nodes, steps=fs.Budget(steps=41))
    assert [node.steps for node in trace.nodes] == [-(-41 // nodes)] * nodes


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("strategy", [fs.Swarm(period=3), fs.SwarmPull(period=3)])
@pytest.mark.cases(check=4, test=5)
def test_nodes_on_their_own_spend_it_together(strategy, backend, nodes):
    trace = backends()[backend](strategy, Quadratics(), nodes=nodes, steps=fs.Budget(steps=400))
    total = sum(node.steps for node in trace.nodes)
    # What each may take before it hears that others took the last: a few steps, by rumour through all nodes.
    assert total >= 400
    if backend == "simulator":
        assert total <= 400 + 4 * nodes * (nodes - 1)


@pytest.mark.slow
def test_real_processes_spend_it_together():
    trace = fs.launch(fs.Swarm(period=3), Quadratics(), nodes=3, steps=fs.Budget(samples=3000, batch=2))
    assert sum(node.steps for node in trace.nodes) >= 1500
    assert all(node.steps > 0 for node in trace.nodes)


@pytest.mark.slow
def test_a_slow_node_does_its_part_only():
    trace = fs.simulate(
        fs.Swarm(period=4),
        Quadratics(),
        nodes=8,
        steps=fs.Budget(steps=4000),
        compute=fs.Compute(step="10 ms", stragglers={3: 4.0}),
        network=fs.Network(bandwidth="100 Mbit/s", latency="1 ms"),
    )
    steps = [node.steps for node in trace.nodes]
    fast = [n for rank, n in enumerate(steps) if rank != 3]
    assert 4000 <= sum(steps) <= 4000 * 1.02
    assert max(fast) - min(fast) <= 0.03 * max(fast)
    assert 0.22 <= steps[3] / max(fast) <= 0.28
    # The record is of all nodes at one moment, at what each has done on average.
    assert [row.step for row in trace.rows[:-1]] == [25 * k for k in range(len(trace.rows) - 1)]


def test_samples_count_by_the_batch():
    # Where steps take no time at all, any number of them fits between a question and its answer.
    trace = fs.simulate(
        fs.Swarm(), Quadratics(), nodes=2, steps=fs.Budget(samples=1000, batch=8), compute=fs.Compute(step="10 ms")
    )
    assert 125 <= sum(node.steps for node in trace.nodes) <= 127


@pytest.mark.slow
def test_what_the_dead_have_spent_stays_spent():
    compute = fs.Compute(step="10 ms")
    faults = [fs.faults.Crash(node=1, at="2 s"), fs.faults.Crash(node=2, at="1 s", back_after="1 s")]
    trace = fs.simulate(
        fs.Swarm(), Quadratics(), nodes=4, steps=fs.Budget(steps=2000), compute=compute, faults=faults, timeout="1 s"
    )
    # Node 2 counts anew in its second life; its report adds nothing of the first.
    alive, dead, first_life = sum(trace.nodes[rank].steps for rank in (0, 2, 3)), trace.nodes[1].steps, 100
    assert 2000 - 0.05 * 2000 <= alive + dead + first_life <= 2000 + 60


def net():
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def data():
    torch.manual_seed(1)
    x = torch.randn(64, 4)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)


def train(strategy, budget, shape=lambda p: 1 - p):
    def loop():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = LambdaLR(optimizer, fs.progress(shape))
        rates = []
        with fs.join(model, optimizer, strategy, budget=budget) as node:
            for x, y in node.batches(data()):
                rates.append((node.progress, optimizer.param_groups[0]["lr"]))
                optimizer.zero_grad()
                ((model(x) - y) ** 2).mean().backward()
                optimizer.step()
                schedule.step()
            node.average_model()
            return rates, optimizer.param_groups[0]["lr"], node.spread

    return loop


@pytest.mark.parametrize("strategy", [fs.LocalSGD(period=3), fs.Swarm(period=3)])
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.cases(check=2)
def test_the_rate_follows_what_all_have_done(nodes, strategy):
    compute = fs.Compute(step="10 ms", stragglers={nodes - 1: 3.0})
    trace = fs.simulate(train(strategy, fs.Budget(samples=1500, batch=8)), nodes=nodes, compute=compute)
    for rates, last, spread in trace.results.values():
        assert last == pytest.approx(0.0, abs=1e-12)
        assert spread >= 0
        for (before, _), (progress, rate) in itertools.pairwise(rates):
            assert before <= progress
            # The schedule stepped when the step before this one ended; meanwhile there may have been news.
            assert 0.1 * (1 - progress) - 1e-9 <= rate <= 0.1 * (1 - before) + 1e-9


def test_progress_of_nothing_is_an_error():
    with pytest.raises(fs.NodeFailed, match=r"join\(\.\.\., budget=fs\.Budget"):
        fs.simulate(train(fs.Swarm(), None), nodes=1)
    with pytest.raises(fs.NodeFailed, match=r"join\.budget must be a Budget, got 5"):
        fs.simulate(train(fs.Swarm(), 5), nodes=1)


def test_nodes_with_other_budgets_do_not_train_together():
    def loop():
        return train(fs.LocalSGD(period=2), fs.Budget(steps=100 + fs.rank()))()

    with pytest.raises(fs.Mismatch, match="100 steps in all"):
        fs.simulate(loop, nodes=2)


def test_a_loader_that_never_steps_is_an_error():
    def loop():
        model = net()
        with fs.join(model, SGD(model.parameters()), fs.Swarm(), budget=fs.Budget(steps=5)) as node:
            for _ in node.batches(data()):
                pass

    with pytest.raises(fs.FlockstepError, match=r"without a single optimizer\.step"):
        fs.simulate(loop, nodes=1)


def test_spread_is_that_of_the_models():
    def loop():
        model = nn.Linear(1, 1, bias=False).double()
        with fs.join(model, torch.optim.SGD(model.parameters(), lr=0.0), fs.Swarm()) as node:
            with torch.no_grad():
                model.weight.fill_(float(node.rank))
            node.flat.pull()
            node.meet()
            average = node.average_model().weight.item()
            node.log(0.0)
            return average, node.spread

    trace = fs.simulate(loop, nodes=5)
    for average, spread in trace.results.values():
        assert (average, spread) == pytest.approx((2.0, 2.0))
    assert trace.rows[-1].spread == pytest.approx(2.0)


@pytest.mark.parametrize("strategy", [fs.LocalSGD(period=2), fs.Swarm()])
def test_a_resumed_run_goes_on_with_what_is_left(tmp_path, strategy):
    def loop(stop):
        def body():
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            schedule = LambdaLR(optimizer, fs.progress(lambda p: 1 - p))
            kept = {"resume": tmp_path, "save_every": 10, "stateful": [schedule]}
            with fs.join(model, optimizer, strategy, budget=fs.Budget(steps=60), **kept) as node:
                began = node.progress
                for x, y in node.batches(data()):
                    optimizer.zero_grad()
                    ((model(x) - y) ** 2).mean().backward()
                    optimizer.step()
                    schedule.step()
                    if stop and node.step_count == 20:
                        break
                return began, node.step_count, optimizer.param_groups[0]["lr"]

        return body

    compute = fs.Compute(step="10 ms")
    first = fs.simulate(loop(True), nodes=2, compute=compute)
    # A node that begins a moment later has heard of the first one's step.
    assert all(began <= 1 / 60 and steps == 20 for began, steps, _ in first.results.values())
    second = fs.simulate(loop(False), nodes=2, compute=compute)
    for began, steps, rate in second.results.values():
        assert began == pytest.approx(40 / 60, abs=0.05)
        assert 29 <= steps <= 33
        assert rate == pytest.approx(0.0, abs=1e-12)
