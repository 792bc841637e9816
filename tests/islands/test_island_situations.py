"""Models and loops of many kinds inside islands: what plain nodes train, to rounding."""

import island_situations
import pytest
import torch
from island_processes import run

import flockstep as fs

pytestmark = pytest.mark.slow


def assert_near(told, expected, what):
    assert told.keys() == expected.keys(), what
    for name, tensor in expected.items():
        torch.testing.assert_close(
            told[name],
            tensor.to(told[name].dtype),
            rtol=1e-9,
            atol=1e-12,
            msg=lambda m, name=name: f"{what}: {name}: {m}",
        )


def check(islands, names):
    found = run(island_situations.on_islands, islands, 2, names)
    for number, name in enumerate(names):
        plain = island_situations.on_plain_nodes(name, islands, 2)
        for island, members in enumerate(found):
            for member in members:
                assert_near(member[number][0], plain[island][0], name)
                assert member[number][1] == plain[island][1], name


BRIEFLY = ["frozen", "batch norm in replicas, late", "sometimes no gradient", "not finite, clipped"]


def test_some_situations():
    check(2, BRIEFLY)


@pytest.mark.thorough
def test_the_other_situations_and_all_on_three_islands():
    check(2, [name for name in island_situations.SITUATIONS if name not in BRIEFLY])
    check(3, list(island_situations.SITUATIONS))


@pytest.mark.thorough
def test_the_average_model_of_shards_and_of_replicas():
    found = run(island_situations.averages, 2, 2)
    expected, spread = island_situations.plain_average(2, 2)
    for members in found:
        for what, told in members[0].items():
            if "spread" not in what:
                assert_near(told, expected, what)
        for member in members:
            assert member["fsdp: spread"] == pytest.approx(spread)
            assert member["replicas: spread"] == pytest.approx(spread)


@pytest.mark.thorough
def test_a_silent_join_is_the_bare_loop_to_the_bit():
    for members in run(island_situations.silently, 2, 2):
        for found in members:
            for (policy, strategy), model in found.items():
                for name, tensor in found[policy, "None"].items():
                    assert torch.equal(model[name], tensor), (policy, strategy, name)


@pytest.mark.thorough
def test_tensor_parallel_over_one_dimension():
    strategies = [fs.LocalSGD(period=3), fs.CELGC(period=3, gamma=0.1), fs.DataParallel()]
    found = run(island_situations.tensor_parallel, 2, 2, strategies)
    for number, strategy in enumerate(strategies):
        plain = fs.simulate(lambda s=strategy: island_situations.tensor_parallel(None, None, [s]), nodes=2).results
        for island, members in enumerate(found):
            for member in members:
                assert_near(member[number][0], plain[island][0][0], strategy)
                assert member[number][1] == plain[island][0][1]
