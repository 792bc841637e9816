"""Random misfortune: every one-sided strategy comes to its end. ``python -m benchmarks.schedules`` tries thousands."""

from importlib.util import find_spec

import pytest

import flockstep as fs
from benchmarks.schedules import KINDS, drawn
from flockstep.strategy import is_one_sided

# Nodes that misfortune keeps from each other do drift apart.
pytestmark = pytest.mark.filterwarnings("ignore:the nodes drift apart")

FOUND = {"DPSGD": [336]}
"""Numbers of schedules that failed once. 336: what the server itself had pushed last waited for one that had ended."""


def test_every_one_sided_strategy_is_tried():
    # DPSVI is the topic models' own, and there only where they are installed.
    assert set(KINDS) - {"DPSVI"} == {name for name in fs.__all__ if is_one_sided(getattr(fs, name))}
    assert ("DPSVI" in KINDS) == (find_spec("sklearn") is not None)


@pytest.mark.parametrize("number", range(0, 400, 80))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.cases(check=5, test=10)
def test_it_comes_to_its_end(kind, number):
    for schedule in (drawn(number + further, kind) for further in range(2)):
        assert not schedule.complaint(), schedule


@pytest.mark.parametrize(("kind", "number"), [(kind, number) for kind in FOUND for number in FOUND[kind]])
def test_what_was_found_is_mended(kind, number):
    assert not drawn(number, kind).complaint()


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_has_one_outcome(kind):
    assert drawn(7, kind).outcome() == drawn(7, kind).outcome()
