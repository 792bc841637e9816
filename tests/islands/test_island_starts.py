"""How islands are started and how they end; and that what crosses the slow link is one model's bytes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import warm

import flockstep as fs

pytestmark = pytest.mark.slow
WIDTH, ROUNDS = 64, 3


class Sizes(torch.nn.Module):
    """Two layers that are cut evenly."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.second(self.first(x)).square().mean()


def train(how):
    torch.manual_seed(0)
    model, here, inside = Sizes(), fs.place(), {}
    trained = model
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=here.mesh("cpu"))
    if how == "ddp":
        inside = {"island": here.mesh("cpu")}
        trained = torch.nn.parallel.DistributedDataParallel(model, process_group=inside["island"].get_group())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fs.join(trained, optimizer, fs.LocalSGD(period=2), **inside) as node:
        door = node.report().bytes_sent
        for _ in range(2 * ROUNDS):
            optimizer.zero_grad()
            trained(torch.randn(4, WIDTH)).backward()
            optimizer.step()
    return node.report().bytes_sent - door


@pytest.mark.parametrize("how", ["ddp", pytest.param("fsdp", marks=pytest.mark.thorough)])
def test_the_bytes_of_an_island_are_those_of_one_model(how):
    plain = fs.launch(lambda: train("whole"), nodes=2, on="threads")
    one_model = 4 * sum(p.numel() for p in Sizes().parameters())
    # Of two nodes each sends its half of the vector to the other, and the mean of the other half.
    assert set(plain.results.values()) == {ROUNDS * one_model}
    trace = fs.launch(lambda: train(how), islands="2x2")
    # One column's, of two.
    assert set(trace.results.values()) == {ROUNDS * one_model // 2}
    assert len(trace.nodes) == 2
    # And what was compared at the door.
    assert 0 < trace.nodes[1].bytes_sent - ROUNDS * one_model < 2000


def fall(who):
    here = fs.place()
    mesh = here.mesh("cpu")
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fs.join(model, optimizer, fs.LocalSGD(period=2), island=mesh):
        for step in range(6):
            if here.process == who and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.randn(2, 3)).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=mesh.get_group())
            optimizer.step()


def test_a_process_that_dies_ends_all_and_is_named():
    with pytest.raises(fs.LostPeer, match="process 3 of island 1 was killed by SIGKILL"):
        fs.launch(lambda: fall(3), islands="2x2")


SCRIPT = """
import json, torch, torch.distributed as dist
import flockstep as fs

here = fs.place()
mesh = here.mesh("cpu")
torch.manual_seed(here.process)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with fs.join(model, optimizer, fs.LocalSGD(period=2), island=mesh) as node:
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=mesh.get_group())
        optimizer.step()
        node.log(1.0)
told = {"place": [here.island, here.column], "node": [node.rank, node.column], "weight": model.weight.tolist()}
open(f"told-{here.process}.json", "w").write(json.dumps(told))
"""


def check_told(folder):
    told = [json.loads((folder / f"told-{k}.json").read_text()) for k in range(4)]
    assert [one["place"] for one in told] == [one["node"] for one in told] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert all(one["weight"] == told[0]["weight"] for one in told)


def test_under_torchrun_a_variable_says_who_is_on_which_island(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    for done in warm.flock(4, ["script.py"], cwd=tmp_path, env={**os.environ, "FLOCKSTEP_ISLANDS": "2x2"}, timeout=240):
        assert done.returncode == 0, done.stderr
    check_told(tmp_path)


@pytest.mark.thorough
def test_flockstep_run_says_who_is_on_which_island(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [str(Path(sys.executable).with_name("flockstep")), "run", "--islands", "2x2", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    check_told(tmp_path)
    # One process speaks for the first island.
    assert done.stderr.count("step 1, loss 1") == 1
