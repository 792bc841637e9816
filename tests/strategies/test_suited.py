"""Every codec with everything that takes one: it works, on 1, 2 and 5 nodes, or it is refused in one sentence."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import flockstep as fs
from flockstep.workloads.convex import Quadratics

SGD = partial(torch.optim.SGD, lr=0.1)
PROBLEM = Quadratics(dim=40, noise=0.0)
CODECS = {
    "Raw": fs.codecs.Raw(),
    "bf16": fs.codecs.Cast(dtype="bf16"),
    "fp16": fs.codecs.Cast(dtype="fp16"),
    "Modular": fs.codecs.Modular(bits=8),
    "Stochastic": fs.codecs.Stochastic(bits=8),
    "TopK": fs.codecs.TopK(fraction=0.25),
}


def coded(codec):
    return fs.averages.Coded(codec=codec)


def compensated(codec):
    return fs.averages.Compensated(codec=codec)


def mixed(codec):
    return fs.averages.Mixed(topology=fs.topologies.Ring(), codec=codec)


OF_MODELS = {
    "Gossip": lambda codec: fs.Gossip(codec=codec),
    "SClipEFNetwork": lambda codec: fs.SClipEFNetwork(codec=codec),
    "GTNSGDm": lambda codec: fs.GTNSGDm(codec=codec),
    "NoLoCo": lambda codec: fs.NoLoCo(period=4, codec=codec),
    "Swarm": lambda codec: fs.Swarm(period=2, codec=codec),
    "SwarmPull": lambda codec: fs.SwarmPull(period=2, codec=codec),
    "SwarmPairs": lambda codec: fs.SwarmPairs(period=2, codec=codec),
    "ADPSGD": lambda codec: fs.ADPSGD(codec=codec),
    "LocalSGD, mixed": lambda codec: fs.LocalSGD(period=2, average=mixed(codec)),
}
OF_CHANGES = {
    "Choco": lambda codec: fs.Choco(codec=codec),
    "DPSGD": lambda codec: fs.DPSGD(period=2, codec=codec),
    "DataParallel, compensated": lambda codec: fs.DataParallel(average=compensated(codec)),
    "DataParallel, coded": lambda codec: fs.DataParallel(average=coded(codec)),
    "DiLoCo, coded": lambda codec: fs.DiLoCo(period=4, average=coded(codec)),
}
OF_BOTH = {
    "LocalSGD, coded": lambda codec: fs.LocalSGD(period=4, average=coded(codec)),
    "CELGC, compensated": lambda codec: fs.CELGC(period=4, gamma=1.0, average=compensated(codec)),
    "CELGCUpdate, coded": lambda codec: fs.CELGCUpdate(period=4, gamma=1.0, average=coded(codec)),
    "Episode, coded": lambda codec: fs.Episode(period=4, gamma=1.0, average=coded(codec)),
    "EpisodePlus, coded": lambda codec: fs.EpisodePlus(period=4, gamma=1.0, sampled=1, average=coded(codec)),
}
"""Models, or models and gradients, through a mean of all."""
EVERYTHING = OF_MODELS | OF_CHANGES | OF_BOTH
REFUSED = [
    *((name, "TopK") for name in OF_MODELS | OF_BOTH),
    *((name, "Modular") for name in OF_CHANGES | OF_BOTH),
]


@pytest.mark.parametrize(("name", "codec"), REFUSED)
def test_what_would_be_wrong_is_refused_when_it_is_made(name, codec):
    sentence = rf"^\w+\.(codec|average) must suit .*, got .*{codec}\(.*: .*\n  use \w+"
    with pytest.raises(ValueError, match=sentence) as told:
        EVERYTHING[name](CODECS[codec])
    assert str(told.value).count("\n") == 1


FINE = [(name, codec) for name in EVERYTHING for codec in CODECS if (name, codec) not in REFUSED]


AT_RANDOM = ("Swarm", "SwarmPull", "ADPSGD")
"""Where a codec draws from the same stream, or messages are shorter, they meet others, and at other times."""


def losses(name, codec, nodes):
    """Before and after; means over seeds where one schedule says little."""
    found = []
    for seed in range(8 if name in AT_RANDOM else 1):
        trace = fs.simulate(
            EVERYTHING[name](codec), PROBLEM, nodes=nodes, steps=41, optimizer=SGD, record_every=41, seed=seed
        )
        assert all(torch.isfinite(model).all() for model in trace.models.values())
        found.append((trace.rows[0].loss, trace.loss))
    return np.mean(found, axis=0)


@pytest.mark.parametrize("nodes", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.cases(check=6, test=8)
def test_what_is_taken_learns_as_much_as_without_a_codec(name, nodes):
    # All codecs of one in one test: they are compared with the same runs, which are made once.
    start, exact = losses(name, CODECS["Raw"], nodes)
    assert exact < start
    coders = [codec for one, codec in FINE if one == name and codec != "Raw"]
    assert coders
    for codec in coders:
        _, end = losses(name, CODECS[codec], nodes)
        # Without error feedback, what TopK leaves out of a gradient never comes.
        share = 0.8 if codec == "TopK" else 0.02
        assert end - exact <= share * (start - exact), codec


def test_an_average_that_keeps_few_columns_is_for_changes():
    with pytest.raises(ValueError, match=r"LocalSGD\.average must suit models, got PowerSGD\(rank=2\): it would leave"):
        fs.LocalSGD(period=2, average=fs.averages.PowerSGD(rank=2))
    fs.DataParallel(average=fs.averages.PowerSGD(rank=2))


def test_a_codec_of_ones_own_that_says_nothing_is_taken_at_its_word():
    class Own(fs.codecs.Raw):
        pass

    assert np.array_equal(losses("Gossip", Own(), 2), losses("Gossip", fs.codecs.Raw(), 2))
    fs.Choco(codec=Own())
    fs.averages.Coded(codec=Own())


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.slow
def test_a_lattice_in_a_loop_with_batch_norm(nodes):
    """Statistics move in the forward pass, while messages of the step before are read and mended."""

    def train():
        torch.manual_seed(fs.rank())
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x = torch.randn(64, 4)
        with fs.join(model, optimizer, fs.Gossip(codec=fs.codecs.Modular(bits=8))) as node:
            for _ in range(40):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
                loss.backward()
                optimizer.step()
            sent = node.report().counts.get("coded by numba", 0)
        assert float(model[1].running_var.min()) > 0
        return loss.item(), sent

    for loss, sent in fs.simulate(train, nodes=nodes).results.values():
        assert loss < 1.0
        assert sent == (nodes > 1) * 39
