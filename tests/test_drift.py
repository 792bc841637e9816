"""Nodes that drift apart are told of, whatever the loss of their average says; nodes that do not are not."""

import math
import warnings
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from one_of_each import one_of_each

import flockstep as fs
from flockstep.drift import drift
from flockstep.trace import Row
from flockstep.workloads.convex import Quadratics

SGD = partial(torch.optim.SGD, lr=0.05)


def rows(spread, loss=lambda t: 1 - t, count=20):
    return [Row(k / count, k, loss(k / count), 0.0, spread(k / count)) for k in range(count)]


@pytest.mark.parametrize("count", [8, 20, 33])
def test_a_spread_that_grows_on_and_on_is_told_of(count):
    said = drift(rows(lambda t: 1e-3 * math.exp(20 * t), count=count))
    assert said is not None and said.startswith("the nodes drift apart") and f"at step {count - 1}," in said


@pytest.mark.parametrize(
    "spread",
    [
        lambda t: 0.0,
        lambda t: 1.0,
        lambda t: math.exp(-5 * t),
        pytest.param(lambda t: 1 - math.exp(-8 * t), id="up to where averaging holds it"),
        pytest.param(lambda t: t, id="a random walk"),
        pytest.param(lambda t: t * t, id="nodes that never talk"),
        pytest.param(lambda t: 1e-16 * math.exp(20 * t), id="rounding"),
        pytest.param(lambda t: 1e-30 if t < 0.6 else 100 * t, id="together until somebody died"),
        pytest.param(lambda t: math.nan, id="nobody looked"),
    ],
)
def test_others_are_not(spread):
    assert drift(rows(spread)) is None


def test_where_the_loss_shows_it_or_rows_are_few_nothing_is_said():
    assert drift(rows(lambda t: math.exp(20 * t), loss=lambda t: t)) is None
    assert drift(rows(lambda t: math.exp(20 * t), count=7)) is None
    assert drift([]) is None


@dataclass(frozen=True, kw_only=True)
class Repels:
    """Nodes go away from their mean, which stays: what two that swap and overshoot do."""

    async def run(self, node):
        x = node.params
        async for _ in node.steps():
            await node.step(await node.gradient(x))
            x.add_(0.1 * (x - await node.mean(x.clone(), "models")))


@pytest.mark.parametrize("run", [fs.simulate, partial(fs.launch, on="threads")], ids=["simulator", "threads"])
def test_a_run_that_drifts_warns_once_and_says_so_when_printed(run):
    with pytest.warns(UserWarning, match="drift apart") as told:
        trace = run(Repels(), Quadratics(dim=5), nodes=3, steps=36, record_every=2, optimizer=SGD)
    assert len(told) == 1
    assert trace.rows[-1].loss < trace.rows[0].loss
    assert str(trace).endswith(f"spread {trace.spread:.3g}, and growing")


@pytest.mark.parametrize("strategy", one_of_each(period=4), ids=lambda strategy: type(strategy).__name__)
@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.cases(check=6, test=8)
def test_no_strategy_of_ours_drifts(size, strategy):
    slow = {
        "network": fs.Network(bandwidth="10 Mbit/s", latency="10 ms"),
        "compute": fs.Compute(step="20 ms", spread=0.3),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*drift apart")
        trace = fs.simulate(strategy, Quadratics(dim=20, noise=0.5), nodes=size, steps=120, optimizer=SGD, **slow)
    assert trace.drift is None and math.isfinite(trace.spread)


def test_a_trace_without_a_spread_says_none():
    trace = fs.Trace("one", rows(lambda t: math.nan), [], {})
    assert math.isnan(trace.spread) and "spread" not in str(trace)
