"""One program, every place: simulator, threads and processes give the same numbers."""

from functools import partial

import pytest
import torch

import flockstep as fs
from flockstep.workloads.convex import Logistic, Quadratics

STRATEGIES = {
    "DataParallel": fs.DataParallel(clip=fs.ClipNorm(max_norm=0.5)),
    "LocalSGD": fs.LocalSGD(period=7),
    "CELGC": fs.CELGC(period=7, gamma=0.05),
    "Episode": fs.Episode(period=7, gamma=0.05),
    "EpisodePlus": fs.EpisodePlus(period=7, gamma=0.05, sampled=3),
    "coded": fs.LocalSGD(period=7, average=fs.Coded(codec=fs.Cast(dtype="bf16"))),
    "gossip": fs.LocalSGD(period=1, average=fs.Mixed(topology=fs.Ring(), codec=fs.Raw())),
}
HARDWARE = {
    "network": fs.Network(bandwidth="10 Mbit/s", latency="3 ms"),
    "compute": fs.Compute(step="5 ms", spread=0.4, stragglers={1: 3.0}),
}


def unequal_shards():
    """30 examples on 4 nodes: two have one more than the others."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 5, generator=generator)
    labels = torch.where(features[:, 0] + 0.3 * torch.randn(30, generator=generator) > 0, 1.0, -1.0)
    return Logistic(data=(features.numpy(), labels.numpy()), batch=3, heterogeneity=0.5)


def run(backend, strategy, workload, nodes=4, steps=40):
    sgd = partial(torch.optim.SGD, lr=0.3, momentum=0.5)
    return backend(strategy, workload, nodes=nodes, steps=steps, optimizer=sgd, seed=11, record_every=9)


def assert_agree(one, other, relative):
    for rank in one.models:
        difference = (one.models[rank] - other.models[rank]).norm() / one.models[rank].norm()
        assert difference <= relative
    assert [row.step for row in one.rows] == [row.step for row in other.rows]
    for a, b in zip(one.rows, other.rows, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=max(relative, 1e-7))
        assert a.spread == pytest.approx(b.spread, rel=1e-4, abs=1e-9)
        assert a.bytes == b.bytes
    for a, b in zip(one.nodes, other.nodes, strict=True):
        assert (a.steps, a.gradients, a.skipped, a.counts) == (b.steps, b.gradients, b.skipped, b.counts)
        assert (a.bytes_sent, a.bytes_received) == (b.bytes_sent, b.bytes_received)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_hardware_model_does_not_change_the_numbers(name):
    plain = run(partial(fs.simulate, engine="events"), STRATEGIES[name], unequal_shards())
    uneven = run(partial(fs.simulate, engine="events", **HARDWARE), STRATEGIES[name], unequal_shards())
    assert_agree(plain, uneven, 0.0)
    assert uneven.seconds > plain.seconds == 0.0
    # The engine may follow from the hardware, and another engine rounds in another order.
    assert_agree(plain, run(fs.simulate, STRATEGIES[name], unequal_shards()), 1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
def test_one_seed_one_outcome_to_the_bit(name):
    first, second = (run(partial(fs.simulate, **HARDWARE), STRATEGIES[name], unequal_shards()) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert all(torch.equal(first.models[rank], second.models[rank]) for rank in range(4))


@pytest.mark.parametrize("name", STRATEGIES)
def test_threads_agree_with_the_simulator(name):
    virtual = run(fs.simulate, STRATEGIES[name], unequal_shards())
    assert_agree(virtual, run(partial(fs.launch, on="threads"), STRATEGIES[name], unequal_shards()), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_processes_agree_with_the_simulator(name):
    virtual = run(fs.simulate, STRATEGIES[name], unequal_shards())
    assert_agree(virtual, run(fs.launch, STRATEGIES[name], unequal_shards()), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_any_number_of_processes(nodes):
    problem = Quadratics(dim=10, dtype=torch.float64)
    strategy = fs.Episode(period=3, gamma=0.1)
    assert_agree(run(fs.simulate, strategy, problem, nodes), run(fs.launch, strategy, problem, nodes), 1e-12)
