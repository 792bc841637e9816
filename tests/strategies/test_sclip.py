"""SClip-EF with a server and over a network, and GT-NSGDm: against NumPy, in every place, and with broken gradients."""

from functools import partial

import numpy as np
import pytest
import sclip_oracles as oracles
import torch
from torch import nn

import flockstep as fs
from flockstep.node import stream
from flockstep.testing import check_strategy, check_synchronous
from flockstep.vector import norm
from flockstep.workloads.convex import Quadratics

SEED, STEPS, DIM, ETA = 3, 37, 6, 0.5
PROBLEM = Quadratics(dim=DIM, noise=2.0, dtype=torch.float64)
SGD = partial(torch.optim.SGD, lr=ETA)
CLIP = {"c_phi": 3.0, "tau": 2.0}
BETA = 0.7
ENGINES = ("events", "stacked")


def run(strategy, size, engine="auto", **options):
    return fs.simulate(strategy, PROBLEM, nodes=size, steps=STEPS, optimizer=SGD, seed=SEED, engine=engine, **options)


def models(trace):
    return np.stack([trace.models[rank].numpy() for rank in sorted(trace.models)])


def gradients(size):
    """Everybody's gradients, drawn as the library draws them."""
    shards = [PROBLEM.shard(rank, size) for rank in range(size)]
    streams = [stream(SEED, rank, "data") for rank in range(size)]

    def at(x, t):
        rows = zip(shards, x, streams, strict=True)
        return np.stack([shard.gradient(torch.from_numpy(row.copy()), rng).numpy() for shard, row, rng in rows])

    return at


def weights(topology, size):
    matrix = np.zeros((size, size))
    for rank in range(size):
        for peer, weight in topology.weights(rank, size).items():
            matrix[rank, peer] = weight
    return matrix


def server(**options):
    return fs.SClipEF(clip=fs.clips.SmoothClip(**CLIP), c_beta=BETA, **options)


def network(topology):
    return fs.SClipEFNetwork(clip=fs.clips.SmoothClip(**CLIP), c_beta=BETA, topology=topology)


# Oracles --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_server_form(size, engine):
    x, _ = oracles.sclip_ef(np.zeros((size, DIM)), gradients(size), None, STEPS, **CLIP, c_beta=BETA, c_eta=ETA)
    np.testing.assert_allclose(models(run(server(), size, engine)), x, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("topology", [fs.topologies.Ring(), fs.topologies.Complete(), fs.topologies.Star()], ids=repr)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_network_form(size, topology, engine):
    x, _ = oracles.sclip_ef(
        np.zeros((size, DIM)), gradients(size), weights(topology, size), STEPS, **CLIP, c_beta=BETA, c_eta=ETA
    )
    np.testing.assert_allclose(models(run(network(topology), size, engine)), x, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_complete_network_is_the_server_form(size):
    np.testing.assert_allclose(
        models(run(network(fs.topologies.Complete()), size)), models(run(server(), size)), rtol=1e-11, atol=1e-13
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("topology", [fs.topologies.Ring(), fs.topologies.Complete()], ids=repr)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_gt_nsgdm(size, topology, engine):
    x, v, y = oracles.gt_nsgdm(
        np.zeros((size, DIM)), gradients(size), weights(topology, size), STEPS, beta=BETA, eta=ETA
    )
    np.testing.assert_allclose(
        models(run(fs.GTNSGDm(beta=BETA, topology=topology), size, engine)), x, rtol=1e-10, atol=1e-12
    )
    # What tracking is for: whatever the graph, the sum of all y is the sum of all v.
    np.testing.assert_allclose(y.sum(0), v.sum(0), rtol=1e-10, atol=1e-12)


# The clip -------------------------------------------------------------------------------------------------------------


class Counting:
    """As much of a node as a clip needs."""

    rank = column = 0
    length = staticmethod(norm)

    def __init__(self, step):
        self.step_count, self.counts = step + 1, {}

    def count(self, name, amount=1):
        self.counts[name] = self.counts.get(name, 0) + int(torch.as_tensor(amount).sum())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("step", [0, 1, 999])
def test_the_smooth_clip_is_its_formula(step, dtype):
    y = torch.linspace(-50, 50, 41, dtype=torch.float64).to(dtype)
    clipped = fs.clips.SmoothClip(**CLIP)(y.clone(), Counting(step))
    expected = oracles.smooth_clip(y.double().numpy(), step, **CLIP)
    assert clipped.dtype == dtype
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
    np.testing.assert_allclose(clipped.double().numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_beyond_all_bounds_becomes_the_bound(dtype):
    largest, node = torch.finfo(dtype).max, Counting(3)
    y = torch.tensor([torch.inf, -torch.inf, torch.nan, largest, -largest, 0.0], dtype=dtype)
    phi = CLIP["c_phi"] * 4**-0.5
    expected = torch.tensor([phi, -phi, 0.0, phi, -phi, 0.0], dtype=dtype)
    torch.testing.assert_close(fs.clips.SmoothClip(**CLIP)(y, node), expected)
    assert node.counts == {"not a number": 1}


def test_finite_numbers_whose_sum_is_not_are_not_counted_as_broken():
    largest, node = torch.finfo(torch.float32).max, Counting(0)
    fs.clips.SmoothClip()(torch.tensor([largest, largest]), node)
    assert node.counts.get("not a number", 0) == 0


def test_coordinates_are_clipped_each_by_itself():
    node, g = Counting(4), torch.tensor([-9.0, 1.0, torch.inf, torch.nan])
    clipped = fs.clips.ClipCoordinates(limit=lambda step: step + 1.0)(g, node)
    assert clipped.tolist() == [-5.0, 1.0, 5.0, 0.0]
    assert node.counts == {"not a number": 1}


def test_a_norm_may_grow_with_the_step():
    g = torch.tensor([30.0, 40.0])
    assert fs.clips.ClipNorm(max_norm=lambda step: 5.0 * (step + 1))(g, Counting(1)).tolist() == [6.0, 8.0]


# Broken gradients -----------------------------------------------------------------------------------------------------


class Broken(Quadratics):
    """Every gradient has something that is no number in it."""

    def gradient(self, x, rng):
        g = super().gradient(x, rng)
        g[0], g[1] = torch.nan, torch.inf
        return g

    def stack(self, size):
        return None


@pytest.mark.parametrize("strategy", [server(), network(fs.topologies.Ring())], ids=repr)
def test_a_gradient_that_is_not_finite_leaves_the_memory_alone(strategy):
    trace = fs.simulate(strategy, Broken(dim=4, dtype=torch.float64), nodes=3, steps=10, optimizer=SGD)
    assert trace.model.tolist() == [0.0] * 4
    assert all(node.counts["not finite"] == 10 for node in trace.nodes)


def test_normalised_steps_pass_over_a_broken_gradient():
    trace = fs.simulate(fs.GTNSGDm(), Broken(dim=4, dtype=torch.float64), nodes=3, steps=10, optimizer=SGD)
    assert trace.model.tolist() == [0.0] * 4
    assert all(node.counts["not finite"] == 10 for node in trace.nodes)


# In every place -------------------------------------------------------------------------------------------------------

EVERYWHERE = [
    server(),
    network(fs.topologies.Ring()),
    network(fs.topologies.Complete()),
    fs.GTNSGDm(topology=fs.topologies.Ring()),
]


@pytest.mark.parametrize("strategy", EVERYWHERE, ids=repr)
@pytest.mark.cases(test=2)
@pytest.mark.slow
def test_the_laws(strategy):
    check_strategy(strategy, is_sgd=False)
    check_synchronous(strategy)


@pytest.mark.cases(test=3)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", EVERYWHERE, ids=repr)
@pytest.mark.parametrize("on", ["threads", "processes"])
def test_four_real_nodes_agree_with_the_simulator(strategy, on):
    real = fs.launch(strategy, PROBLEM, nodes=4, steps=STEPS, optimizer=SGD, seed=SEED, timeout=60, on=on)
    np.testing.assert_allclose(models(real), models(run(strategy, 4)), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("strategy", EVERYWHERE, ids=repr)
def test_in_a_loop_of_ones_own(strategy):
    def train():
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fs.join(model, optimizer, strategy) as node:
            x = torch.randn(32, 3, generator=torch.Generator().manual_seed(node.rank))
            first = float((model(x) - x[:, :2]).square().mean().detach())
            for _ in range(20):
                optimizer.zero_grad()
                loss = (model(x) - x[:, :2]).square().mean()
                loss.backward()
                optimizer.step()
        return first, float(loss.detach())

    losses = fs.launch(train, nodes=2, on="threads", timeout=60).results
    assert all(last < 0.8 * first for first, last in losses.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fs.clips.SmoothClip(c_phi=0), "SmoothClip.c_phi must be positive"),
        (lambda: fs.clips.SmoothClip(tau=-1.0), "SmoothClip.tau must be positive"),
        (lambda: fs.SClipEF(c_beta=1.0), "c_beta must be below 1"),
        (lambda: fs.SClipEF(eta_power=-0.1), "SClipEF.eta_power"),
        (lambda: fs.SClipEF(average=3), "SClipEF.average"),
        (lambda: fs.SClipEFNetwork(topology=3), "SClipEFNetwork.topology"),
        (lambda: fs.GTNSGDm(beta=1.0), "GTNSGDm.beta must be below 1"),
        (lambda: fs.clips.ClipCoordinates(limit=0.0), "ClipCoordinates.limit must be positive"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
