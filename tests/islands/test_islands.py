"""The law of islands: they train what plain nodes train whose gradient is the mean of their members'."""

import itertools

import island_loops
import pytest
import torch
from island_processes import run

import flockstep as fs

pytestmark = pytest.mark.slow
STRATEGIES = [
    fs.LocalSGD(period=3),
    fs.CELGC(period=3),
    fs.CELGC(period=3, gamma=0.02),
    fs.CELGCUpdate(period=3, gamma=0.1),
    fs.DataParallel(clip=fs.clips.ClipNorm(max_norm=0.5)),
    fs.DiLoCo(period=3),
    fs.StreamingDiLoCo(period=4, fragments=1, delay=1),
    fs.HPSGD(period=3),
    fs.SClipEF(),
    fs.Episode(period=3),
]
"""One of each kind."""
OTHERS = [
    fs.DataParallel(),
    fs.LocalSGD(period=3, clip=fs.clips.ClipStep(gamma=0.02)),
    fs.LocalSGD(period=3, clip=fs.clips.ClipCoordinates(limit=0.1)),
    fs.EagerDiLoCo(period=3),
    fs.EagerDiLoCo(period=3, published=True),
    fs.CoCoD(period=3),
    fs.OverlapLocalSGD(period=3),
    fs.EpisodePlus(period=3),
    fs.EpisodePlus(period=3, sampled=1),
    fs.HPSGD(min_period=2, max_period=2),
]
STEPS = 8


def check(how, islands, columns, strategies):
    """Every process of every island ends with the model that plain nodes end with, and has counted what they have."""
    found = run(island_loops.on_islands, islands, columns, how, strategies, STEPS, shards=how == "fsdp")
    for number, strategy in enumerate(strategies):
        plain = island_loops.on_plain_nodes(strategy, islands, columns, STEPS)
        for island, members in enumerate(found):
            for member in members:
                told, expected = member[number], plain[island]
                for name, tensor in expected["model"].items():
                    torch.testing.assert_close(
                        told["model"][name], tensor, rtol=1e-9, atol=1e-12, msg=lambda m, s=strategy: f"{s}: {m}"
                    )
                assert told["counts"] == expected["counts"], strategy
        # Some long steps and some short ones: else the law would hold nothing of clips.
        if isinstance(strategy, fs.CELGC) or isinstance(getattr(strategy, "clip", None), fs.clips.ClipNorm):
            assert 0 < plain[0]["counts"]["clipped"] < STEPS, strategy


def test_sharded_two_by_two():
    check("fsdp", 2, 2, STRATEGIES)


@pytest.mark.thorough
def test_sharded_two_by_two_with_the_other_strategies():
    check("fsdp", 2, 2, OTHERS)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["fsdp", "ddp", "replicas"])
def test_three_by_two(how):
    check(how, 3, 2, STRATEGIES)


@pytest.mark.thorough
def test_two_by_three_and_one_by_two_and_two_by_one():
    check("fsdp", 2, 3, STRATEGIES[:5])
    check("ddp", 1, 2, STRATEGIES[:5])
    check("fsdp", 2, 1, STRATEGIES[:5])


def test_ddp():
    check("ddp", 2, 2, STRATEGIES[2:6])


def test_strategies_that_meet_single_nodes_are_refused():
    strategies = [fs.Gossip(), fs.SwarmPairs(), fs.GTNSGDm()]
    for said in itertools.chain(*run(island_loops.refused, 2, 2, strategies, shards=False)):
        assert len(said) == len(strategies)
        assert all("an island does not yet" in sentence for sentence in said), said
