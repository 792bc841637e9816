"""One program, every place: simulator, threads and processes give the same numbers."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.message import ring_bytes
from flockstep.testing.law import Page
from flockstep.workloads.convex import Logistic, Quadratics

STRATEGIES = {
    "DataParallel": fs.DataParallel(clip=fs.clips.ClipNorm(max_norm=0.5)),
    "LocalSGD": fs.LocalSGD(period=7),
    "CELGC": fs.CELGC(period=7, gamma=0.05),
    "CELGC by default": fs.CELGC(period=7),
    "Episode": fs.Episode(period=7, gamma=0.05),
    "Episode by default": fs.Episode(period=7),
    "EpisodePlus": fs.EpisodePlus(period=7, gamma=0.05, sampled=3),
    "coded": fs.LocalSGD(period=7, average=fs.averages.Coded(codec=fs.codecs.Cast(dtype="bf16"))),
    "gossip": fs.LocalSGD(period=1, average=fs.averages.Mixed(topology=fs.topologies.Ring(), codec=fs.codecs.Raw())),
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


@pytest.mark.cases(test=5)
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


# Means of halves -----------------------------------------------------------------------------------------------------

PLACES = {
    "simulator": fs.simulate,
    "threads": partial(fs.launch, on="threads"),
    "processes": fs.launch,
}
EVERYWHERE = [name if name != "processes" else pytest.param(name, marks=pytest.mark.slow) for name in PLACES]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def brought(rank, count, half, alike):
    """A large number among small ones first: summed in halves, those are lost. Then numbers of all sizes."""
    rng = np.random.default_rng([3, 0 if alike else rank])
    spread = torch.from_numpy(rng.standard_normal(count) * 10.0 ** rng.uniform(-2, 2, count))
    large = torch.tensor([2048.0 if alike or rank == 1 else 1.0])
    return torch.cat([large, spread])[:count].to(HALVES[half])


@dataclass(frozen=True)
class Averages:
    """Every node writes down the means of what all brought: one for each number of halves of each kind, in a row."""

    counts: tuple[int, ...]
    alike: bool = False

    async def run(self, node):
        means = []
        for half in HALVES:
            for count in self.counts:
                channel = f"{count} {half}"
                mean = await node.mean(brought(node.rank, count, half, self.alike), channel)
                # Each round is its own: what a mean returns may be changed.
                again = await node.mean(mean.clone(), channel)
                mean.fill_(-1.0)
                means.append(again.double())
        row = torch.cat(means)
        node.params.resize_(len(row)).copy_(row)


def means(place, nodes, counts, alike=False):
    """Those of every node, by kind and number of halves. One run for all: to start processes takes longest."""
    trace = PLACES[place](Averages(counts, alike), Page(), nodes=nodes, steps=1)
    sent = sum(2 * ring_bytes(2 * count, nodes) for count in counts) * len(HALVES)
    assert {node.bytes_sent for node in trace.nodes} == {sent}
    cases = [(half, count) for half in HALVES for count in counts]
    split = [trace.models[rank].split([count for _, count in cases]) for rank in range(nodes)]
    return {case: [parts[i] for parts in split] for i, case in enumerate(cases)}


@pytest.mark.parametrize("place", EVERYWHERE)
@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_halves_are_summed_as_floats_and_rounded_once(nodes, place):
    for (half, count), found in means(place, nodes, (1, 2, 7, 1001)).items():
        vectors = [brought(rank, count, half, alike=False) for rank in range(nodes)]
        expected = np.mean([v.float().numpy() for v in vectors], axis=0, dtype=np.float32)
        rounded = torch.from_numpy(expected).to(HALVES[half]).double()
        for mean in found:
            assert torch.equal(mean, rounded), (half, count)
        # The test is about something: summed one by one in halves, most would be others.
        if nodes > 2 and count == 1001:
            plain = sum(vectors[1:], vectors[0].clone()) / nodes
            assert (plain.double() != rounded).sum() > 100, half


@pytest.mark.parametrize("place", EVERYWHERE)
def test_the_mean_of_equal_halves_is_that_vector_to_the_bit(place):
    for (half, count), found in means(place, 3, (1001,), True).items():
        vector = brought(0, count, half, alike=True).double()
        assert all(torch.equal(mean, vector) for mean in found), half
