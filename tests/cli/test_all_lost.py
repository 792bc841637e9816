"""``flockstep run --keep-going --max-restarts``: nodes killed all at once come back, and go on from checkpoints."""

import json
import os
import signal
import subprocess

import pytest
import warm

pytestmark = pytest.mark.slow

# In its first life a node stops in the middle of its loop, to be killed there. {options} are those of the join.
SCRIPT = """
import json, os, pathlib, signal, time
import torch
import flockstep as fs

rank = fs.rank()
first = not pathlib.Path(f"began-{{rank}}").exists()
pathlib.Path(f"began-{{rank}}").touch()
{before}
torch.manual_seed(rank)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(32, 4)
with fs.join(model, optimizer, fs.Swarm(period=2), {options}) as node:
    if not first:
        told = {{"step": node.step_count, "weight": model.weight.flatten().tolist()}}
        pathlib.Path(f".told-{{rank}}").write_text(json.dumps(told))
        pathlib.Path(f".told-{{rank}}").rename(f"told-{{rank}}")
        while not pathlib.Path("told-0").exists() or not pathlib.Path({until!r}).exists():
            time.sleep(0.01)
    for step in range(node.step_count, 20):
        if first and step == 12:
            os.write(1, b"%d\\n" % os.getpid())
            signal.pause()
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
os.write(1, f"ended {{rank}} at {{node.step_count}}\\n".encode())
"""
SAVING = 'resume="saved", save_every=5'


def kill_all_at_once(folder, options, *, timeout="60 s", before="", until="told-1"):
    """Both nodes, once they are in the middle; gives the exit code, what the second lives said, and the errors."""
    (folder / "train.py").write_text(SCRIPT.format(options=options, before=before, until=until))
    with warm.Popen(
        ["-m", "flockstep", "run", "-n", "2", "--keep-going", "--max-restarts", "1", "--timeout", timeout, "train.py"],
        cwd=folder,
        env=os.environ | {"FLOCKSTEP_LOSSES": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        python=warm.stub(),
    ) as running:
        nodes = [int(running.stdout.readline()) for _ in range(2)]
        for pid in nodes:
            os.kill(pid, signal.SIGKILL)
        said, errors = running.communicate(timeout=200)
    return running.returncode, sorted(said.splitlines()), errors


def told(folder, rank):
    return json.loads((folder / f"told-{rank}").read_text())


def test_they_go_on_from_their_checkpoints(tmp_path):
    code, said, errors = kill_all_at_once(tmp_path, SAVING)
    assert (code, said) == (0, ["ended 0 at 20", "ended 1 at 20"]), errors
    assert [told(tmp_path, rank)["step"] for rank in range(2)] == [10, 10]
    assert errors.count("goes on from its checkpoint at step 10, as all nodes were lost") == 1
    assert "comes too late" not in errors


def test_the_newest_checkpoint_is_first_and_who_has_none_takes_its_weights(tmp_path):
    code, said, errors = kill_all_at_once(tmp_path, 'resume="saved", save_every=5 if rank else 100')
    assert (code, said) == (0, ["ended 0 at 20", "ended 1 at 20"]), errors
    assert "node 1 goes on from its checkpoint at step 10" in errors
    assert [told(tmp_path, rank)["step"] for rank in range(2)] == [0, 10]
    assert told(tmp_path, 0)["weight"] == told(tmp_path, 1)["weight"]


def test_without_a_checkpoint_they_begin_again(tmp_path):
    code, said, errors = kill_all_at_once(tmp_path, "")
    assert (code, said) == (0, ["ended 0 at 20", "ended 1 at 20"]), errors
    assert told(tmp_path, 0) == told(tmp_path, 1)
    assert errors.count("begins again from the beginning, as all nodes were lost and there is no checkpoint") == 1


@pytest.mark.thorough
def test_one_who_does_not_come_back_is_not_waited_for(tmp_path):
    gone = "if rank == 1 and not first: os.kill(os.getpid(), signal.SIGKILL)"
    code, said, errors = kill_all_at_once(tmp_path, SAVING, timeout="12 s", before=gone, until="told-0")
    assert (code, said) == (0, ["ended 0 at 20"]), errors
    assert "node 0 goes on from its checkpoint at step 10, without node 1: nobody trains any more" in errors
