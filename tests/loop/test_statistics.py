"""Batch-norm statistics are no sum of changes: whatever a strategy does to models, a variance stays a variance."""

import pytest
import torch
from one_of_each import one_of_each
from torch import nn

import flockstep as fs

STRATEGIES = [
    *one_of_each(period=8),
    fs.HPSGD(period=8, outer_lr=0.5),
    fs.StreamingDiLoCo(period=8, fragments=2, delay=3),
    fs.DPSGD(period=8, max_steps_in_flight=8),
    fs.DPSGD(period=8, pushes_per_update=4, codec=fs.codecs.Cast()),
]

FEW, MODULAR = fs.codecs.Stochastic(bits=4), fs.codecs.Modular(bits=8)
IN_FEW_BITS = [
    fs.DataParallel(average=fs.averages.Compensated(codec=FEW)),
    fs.LocalSGD(period=8, average=fs.averages.Mixed(topology=fs.topologies.Ring(), codec=MODULAR)),
    fs.LocalSGD(period=8, average=fs.averages.Coded(codec=fs.codecs.Cast())),
    fs.HPSGD(period=8, average=fs.averages.Coded(codec=FEW)),
    fs.DiLoCo(period=1, average=fs.averages.Compensated(codec=fs.codecs.Stochastic(bits=2))),
    fs.DiLoCo(period=8, average=fs.averages.Coded(codec=FEW)),
    fs.DiLoCo(period=8, average=fs.averages.PowerSGD(rank=1)),
    fs.EagerDiLoCo(period=8, average=fs.averages.Compensated(codec=FEW)),
    fs.StreamingDiLoCo(period=8, fragments=2, delay=3, average=fs.averages.Coded(codec=FEW)),
    fs.StreamingDiLoCo(period=8, fragments=1, delay=3, average=fs.averages.Compensated(codec=FEW)),
    fs.StreamingDiLoCo(period=8, fragments=1, delay=3, average=fs.averages.PowerSGD(rank=1)),
    fs.StreamingDiLoCo(
        period=8, fragments=1, delay=3, average=fs.averages.Mixed(topology=fs.topologies.Ring(), codec=fs.codecs.Cast())
    ),
    fs.StreamingDiLoCo(period=8, fragments=3, delay=3, average=fs.averages.Coded(codec=fs.codecs.Cast())),
    fs.Episode(period=8, average=fs.averages.Coded(codec=fs.codecs.Cast())),
    fs.SClipEFNetwork(codec=MODULAR),
    fs.GTNSGDm(codec=fs.codecs.Cast()),
    fs.NoLoCo(period=8, codec=MODULAR),
    fs.Swarm(codec=MODULAR),
    fs.Swarm(period=8, codec=fs.codecs.Cast()),
    fs.SwarmPull(period=8, codec=MODULAR),
    fs.SwarmPairs(period=8, codec=MODULAR),
    fs.ADPSGD(codec=MODULAR),
    fs.Gossip(codec=MODULAR),
    fs.Gossip(codec=fs.codecs.Stochastic(bits=8)),
    fs.Choco(codec=FEW),
    fs.Choco(codec=fs.codecs.TopK(fraction=0.3)),
    fs.DPSGD(codec=FEW),
    fs.DPSGD(period=8, codec=fs.codecs.TopK(fraction=0.3)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.cases(test=6)
@pytest.mark.slow
def test_a_variance_stays_between_what_it_was_and_what_is_seen(strategy):
    """It starts at 1, and inputs have one of 0.01: what is added late, twice or with momentum goes below that."""
    _stays(strategy, scale=0.1, rate=0.0)


@pytest.mark.cases(test=6)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", IN_FEW_BITS, ids=repr)
@pytest.mark.filterwarnings("ignore:the nodes drift apart")
def test_so_it_does_where_models_go_in_few_bits(strategy):
    """Coded as weights are, a small variance would come out below zero: NaN as soon as somebody evaluates."""
    _stays(strategy, scale=1e-3, rate=0.1)


@pytest.mark.cases(test=6)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_so_it_does_where_one_node_has_seen_larger_things(strategy):
    """What a node's variance differed by once must not be taken away from what it is now."""

    def train():
        torch.manual_seed(fs.rank())
        norm, seen = nn.BatchNorm1d(3, momentum=0.5), []
        model = nn.Sequential(norm, nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with fs.join(model, optimizer, strategy):
            for k in range(60):
                optimizer.zero_grad()
                model(torch.randn(64, 3) * (10.0 if fs.rank() == 1 and k < 24 else 0.1)).mean().backward()
                optimizer.step()
                seen.append(norm.running_var.clone())
        return torch.stack([*seen, norm.running_var])

    results = fs.simulate(train, nodes=4).results
    assert all(float(variance.min()) > 0.3 * 0.1**2 for variance in results.values())


def _stays(strategy, scale, rate):
    def train():
        torch.manual_seed(fs.rank())
        norm, seen = nn.BatchNorm1d(3, momentum=0.5), []
        model = nn.Sequential(norm, nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with fs.join(model, optimizer, strategy):
            for _ in range(59):
                optimizer.zero_grad()
                model(torch.randn(64, 3) * scale).mean().backward()
                optimizer.step()
                seen.append(norm.running_var.clone())
        return torch.stack([*seen, norm.running_var])

    trace = fs.simulate(
        train,
        nodes=4,
        network=fs.Network(bandwidth="1 Gbit/s", latency="30 ms"),
        compute=fs.Compute(step="20 ms", spread=0.3),
    )
    for rank, variance in trace.results.items():
        assert float(variance.min()) > 0.3 * scale**2, rank
        assert float(variance.max()) < 1.0 + scale, rank
        assert float(variance[-1].max()) < 0.1, rank
