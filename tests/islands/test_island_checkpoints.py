"""Islands that are stopped go on to the bit; by other numbers of processes to rounding."""

import island_checkpoints
import pytest
import torch
from island_checkpoints import Partly
from island_loops import Net
from island_processes import run

import flockstep as fs

pytestmark = pytest.mark.slow
STOP, END = 4, 8


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, tensor in other.items():
        assert torch.equal(one[name], tensor), name


def assert_near(one, other):
    assert one.keys() == other.keys()
    for name, tensor in other.items():
        torch.testing.assert_close(one[name], tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("how", "strategy", "make"),
    [
        ("replicas", fs.CELGC(period=3), Partly),
        pytest.param("fsdp", fs.DiLoCo(period=3), Net, marks=pytest.mark.thorough),
        pytest.param("fsdp", fs.HPSGD(period=3), Partly, marks=pytest.mark.thorough),
    ],
)
def test_as_many_processes_go_on_to_the_bit(tmp_path, how, strategy, make):
    def train(until, **joining):
        told = (how, strategy, make, until, joining)
        return run(island_checkpoints.on_island, 2, 2, *told, shards=how == "fsdp")

    whole = train(END)
    # What was saved is a step, not the end of the run, which exchanges once more.
    train(STOP, resume=str(tmp_path), save_every=STOP)
    assert len(list(tmp_path.glob("step-00000004/*"))) == 4
    again = train(END, resume=str(tmp_path))
    for ours, theirs in zip(again, whole, strict=True):
        for mine, its in zip(ours, theirs, strict=True):
            assert_same(mine[1], its[1])
            assert_same(mine[2], its[2])
            assert mine[3] == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "strategy", "make"),
    [("fsdp", fs.DiLoCo(period=3), Net), ("fsdp", fs.CELGC(period=3), Net), ("replicas", fs.HPSGD(period=3), Net)],
)
def test_islands_of_another_size_go_on_to_rounding(tmp_path, how, strategy, make):
    whole = run(island_checkpoints.on_island, 2, 2, how, strategy, make, END, {})
    saving = {"resume": str(tmp_path), "save_every": STOP}
    run(island_checkpoints.on_island, 2, 2, how, strategy, make, STOP, saving)
    same = run(island_checkpoints.on_island, 2, 2, how, strategy, make, STOP, {"resume": str(tmp_path)})
    for columns in (1, 4, 3):
        until = END if columns != 3 else STOP
        again = run(island_checkpoints.on_island, 2, columns, how, strategy, make, until, {"resume": str(tmp_path)})
        for island in range(2):
            for mine in again[island]:
                assert_same(mine[0], same[island][0][0])
                if columns != 3:
                    assert_near(mine[1], whole[island][0][1])
                assert mine[3] == []
    plain = island_checkpoints.on_plain_nodes(strategy, make, END, {"resume": str(tmp_path)})
    for island in range(2):
        assert_same(plain[island][0], same[island][0][0])
        assert_near(plain[island][1], whole[island][0][1])


@pytest.mark.thorough
def test_a_checkpoint_of_plain_nodes_is_taken_up_by_islands(tmp_path):
    strategy = fs.DiLoCo(period=3)
    whole = island_checkpoints.on_plain_nodes(strategy, Net, END, {})
    saving = {"resume": str(tmp_path), "save_every": STOP}
    island_checkpoints.on_plain_nodes(strategy, Net, STOP, saving)
    again = run(island_checkpoints.on_island, 2, 2, "fsdp", strategy, Net, END, {"resume": str(tmp_path)})
    for island in range(2):
        for mine in again[island]:
            assert_near(mine[1], whole[island][1])


@pytest.mark.thorough
def test_other_numbers_of_islands_begin_from_the_average(tmp_path):
    strategy = fs.LocalSGD(period=3)
    saving = {"resume": str(tmp_path), "save_every": STOP}
    run(island_checkpoints.on_island, 2, 2, "fsdp", strategy, Net, STOP, saving)
    same = run(island_checkpoints.on_island, 2, 2, "fsdp", strategy, Net, STOP, {"resume": str(tmp_path)})
    again = run(island_checkpoints.on_island, 1, 3, "fsdp", strategy, Net, STOP, {"resume": str(tmp_path)})
    average = {name: (tensor + same[1][0][0][name]) / 2 for name, tensor in same[0][0][0].items()}
    for mine in again[0]:
        assert_near(mine[0], average)
        assert "all start from the average model" in mine[3][0]
