"""Every situation of the zoo, under every exported strategy: equal to a loop written by hand, or refused."""

import inspect
import logging
from functools import partial

import pytest
import torch
from one_of_each import one_of_each

import flockstep as fs
from flockstep.testing import LawBroken, check_loop
from flockstep.testing.zoo import SITUATIONS, Situation
from flockstep.testing.zoo.situation import setting, small

# Where a vector is cut depends on its length, and the loop by hand has constants in its own: one fragment.
ALL = [*one_of_each(period=2, gamma=0.05), fs.StreamingDiLoCo(period=4, fragments=1, delay=1)]
NAMED = {type(strategy).__name__: strategy for strategy in ALL}
# One of each kind, which trains in most situations: gradients averaged, models averaged, late, without waiting.
FAST = ("DataParallel", "CELGC", "HPSGD", "Swarm")


@pytest.fixture(autouse=True)
def quiet():
    """Skipped gradients are part of the zoo, and are told of."""
    log = logging.getLogger("flockstep")
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(logging.NOTSET)


def test_no_exported_strategy_is_left_out():
    exported = {
        name
        for name in fs.__all__
        if inspect.isclass(getattr(fs, name)) and getattr(fs, name).__module__.startswith("flockstep.strategies.")
    }
    assert exported == set(NAMED)


def test_the_zoo_has_its_animals():
    assert len(SITUATIONS) >= 40
    assert len({situation.name for situation in SITUATIONS}) == len(SITUATIONS)


# The whole product is on two virtual nodes. Elsewhere a third of it: of strategies, situations and places each pair
# still meets, every strategy with 23 situations in each place and every situation with 8 strategies.
THIRDS = range(3)


def share(third):
    """The strategies of a third, and the situations that they meet for each place, 0 to 2."""
    return list(NAMED.values())[third::3], [SITUATIONS[(third + place) % 3 :: 3] for place in THIRDS]


def test_every_pair_of_strategy_situation_and_place_meets():
    for place in THIRDS:
        met = [
            (type(one).__name__, s.name) for third in THIRDS for one in share(third)[0] for s in share(third)[1][place]
        ]
        assert len(set(met)) == len(met) >= len(NAMED) * (len(SITUATIONS) // 3)
        assert {name for name, _ in met} == set(NAMED)
        assert {name for _, name in met} == {situation.name for situation in SITUATIONS}
        for situation in SITUATIONS:
            assert sum(name == situation.name for _, name in met) >= len(NAMED) // 3, situation.name


@pytest.mark.cases(test=4)
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.slow
def test_on_two_virtual_nodes(name):
    outcomes = check_loop(NAMED[name], nodes=(2,))
    assert len(outcomes) == len(SITUATIONS)
    if name in FAST:
        assert sum(outcome == "right" for outcome in outcomes.values()) > 40


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("third", THIRDS)
@pytest.mark.thorough
def test_on_one_virtual_node_and_on_three(third):
    strategies, situations = share(third)
    check_loop(strategies, situations=situations[0], nodes=(1,))
    check_loop(strategies, situations=situations[1], nodes=(3,))


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("third", THIRDS)
@pytest.mark.thorough
def test_on_threads(third):
    strategies, situations = share(third)
    check_loop(strategies, situations=situations[2], nodes=(2,), run=partial(fs.launch, on="threads"))


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("third", THIRDS)
@pytest.mark.thorough
def test_on_processes(third):
    strategies, situations = share(third)
    check_loop(strategies, situations=situations[0], nodes=(2,), run=partial(fs.launch, on="processes"))


def test_a_situation_that_trains_wrong_is_found():
    def cheats(made, k, rank):
        for optimizer in made.optimizers:
            optimizer.zero_grad()
        made.loss(made.model, k, rank).backward()
        with torch.no_grad():
            made.model[0].weight.mul_(1.001)
        made.optimizers[0].step()

    cheating = Situation("one that writes to its weights", lambda: setting(small()), cheats)
    with pytest.raises(LawBroken, match="away from the loop written by hand"):
        check_loop(fs.LocalSGD(period=2), situations=[cheating], nodes=(2,))


def test_a_situation_that_should_be_refused_and_trains_is_found():
    welcome = Situation("a plain net", lambda: setting(small()), refused="never")
    with pytest.raises(LawBroken, match="trains, and should be refused: never"):
        check_loop(fs.LocalSGD(period=2), situations=[welcome], nodes=(2,))
