"""The law of islands: they train what plain nodes train whose gradient is the mean of their members'."""

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
NEIGHBOURS = [
    fs.DataParallel(average=fs.averages.Mixed(topology=fs.topologies.Ring(), codec=fs.codecs.Raw())),
    fs.Gossip(),
    fs.Gossip(overlap=True),
    fs.SGP(),
    fs.Choco(),
    fs.NoLoCo(period=2),
    fs.SwarmPairs(period=2),
    fs.SClipEFNetwork(),
    fs.GTNSGDm(),
]
"""Those whose nodes meet some of the others at a time."""
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


LOSSY = [
    fs.LocalSGD(period=3, average=fs.averages.Coded(codec=fs.codecs.Stochastic(bits=4))),
    fs.DiLoCo(period=3, average=fs.averages.Compensated(codec=fs.codecs.TopK(fraction=0.2))),
    fs.StreamingDiLoCo(period=4, fragments=3, delay=1),
    fs.HPSGD(),
]
"""Those whose numbers depend on where a vector is cut, or on a clock."""


@pytest.mark.thorough
def test_where_vectors_are_cut_elsewhere_all_processes_end_with_one_model():
    found = run(island_loops.on_islands, 2, 2, "fsdp", LOSSY, STEPS)
    for number, strategy in enumerate(LOSSY):
        first = found[0][0][number]["model"]
        for members in found:
            for member in members:
                assert all(torch.equal(tensor, first[name]) for name, tensor in member[number]["model"].items()), (
                    strategy
                )


@pytest.mark.thorough
def test_strategies_that_meet_neighbours():
    check("fsdp", 3, 2, NEIGHBOURS)
    check("replicas", 2, 2, NEIGHBOURS)


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


def test_a_strategy_that_decides_by_what_one_process_sees_is_told():
    right, wrong = (island_loops.Lazy(distance=0.3, whole=whole) for whole in (True, False))
    plain = island_loops.on_plain_nodes(right, 2, 2, STEPS)
    found = run(island_loops.own_strategies, 2, 2, [right, wrong], shards=False)
    for island, members in enumerate(found):
        for trained, said in members:
            for name, tensor in plain[island]["model"].items():
                torch.testing.assert_close(trained["model"][name], tensor, rtol=1e-9, atol=1e-12)
            assert "1 of the 2 processes of this island changed the model at this step" in said
