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
# One of each kind: gradients averaged, models averaged, late, with memory, without waiting.
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


# Six seconds each: `make check` looks at one of them.
@pytest.mark.parametrize(
    "name", [name if name == "CELGC" else pytest.param(name, marks=pytest.mark.slow) for name in FAST]
)
def test_on_two_virtual_nodes(name):
    outcomes = check_loop(NAMED[name], nodes=(2,))
    assert len(outcomes) == len(SITUATIONS)
    assert sum(outcome == "right" for outcome in outcomes.values()) > 40


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_on_virtual_nodes(name):
    check_loop(NAMED[name], nodes=(1, 3) if name in FAST else (1, 2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_on_threads(name):
    check_loop(NAMED[name], nodes=(2,), run=partial(fs.launch, on="threads"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_on_processes(name):
    check_loop(NAMED[name], nodes=(2,), run=partial(fs.launch, on="processes"))


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
