import sys

import pytest

import flockstep as fs
from flockstep.compare import user_code
from flockstep.workloads.convex import Quadratics

MODULE = """
from flockstep.workloads.convex import Quadratics

workload = Quadratics(dim=3)
number = 3

def make():
    return Quadratics(dim=4)

def make_wrongly():
    return 3

def train(strategy):
    return strategy

def train_seeded(strategy, seed, more=1):
    return strategy, seed

def other(model, strategy):
    pass
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_own_things.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "my_own_things"
    sys.modules.pop("my_own_things", None)


def test_a_place_is_a_module_and_a_name():
    assert user_code.is_place("package.module:train")
    assert not user_code.is_place("quadratics(dim=3)")
    assert not user_code.is_place("shakespeare")


def test_workloads_and_what_makes_them(mine):
    for name, dim in (("workload", 3), ("make", 4)):
        found = user_code.load(f"{mine}:{name}")
        assert isinstance(found, Quadratics)
        assert found.start().numel() == dim


def test_training_functions_get_the_strategy_and_where_they_want_it_the_seed(mine):
    strategy = fs.DataParallel()
    assert user_code.load(f"{mine}:train").program(strategy, 5)() == strategy
    assert user_code.load(f"{mine}:train_seeded").program(strategy, 5)() == (strategy, 5)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("trian", r"has no 'trian' \(did you mean train\?\)"),
        ("number", "neither a workload nor a function"),
        ("other", "neither a workload nor a function"),
        ("make_wrongly", "should make a workload, but made int"),
    ],
)
def test_what_cannot_be_used_is_told(mine, name, told):
    with pytest.raises(ValueError, match=told):
        user_code.load(f"{mine}:{name}")


def test_a_module_that_is_not_there(mine):
    with pytest.raises(ValueError, match="there is no module 'no_such_things'"):
        user_code.load("no_such_things:train")
