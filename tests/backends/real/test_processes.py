"""Real processes, real signals: nothing hangs, nobody is left behind, and the parent is told what happened."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import warm

import flockstep as fs
from flockstep.workloads.convex import Quadratics

pytestmark = pytest.mark.slow
PROBLEM = Quadratics(dim=5)
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Fall:
    """One node falls in the middle of a run, in the way that was asked for."""

    how: str

    async def run(self, node):
        async for k in node.steps():
            if node.rank == 1 and k == 5:
                self.fall()
            node.params.copy_(await node.mean(await node.gradient(node.params)))

    def fall(self):
        if self.how == "raise":
            raise KeyError("lost my keys")
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exit":
            os._exit(3)


def test_an_exception_reaches_the_parent_with_its_traceback():
    with pytest.raises(fs.NodeFailed) as caught:
        fs.launch(Fall("raise"), PROBLEM, nodes=3, steps=10)
    assert caught.value.rank == 1
    assert "KeyError: 'lost my keys'" in str(caught.value)
    assert "self.fall()" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(("how", "fate"), [("kill", "was killed by SIGKILL"), ("exit", "ended with exit code 3")])
def test_a_node_that_dies_is_named(how, fate):
    with pytest.raises(fs.LostPeer, match=f"node 1 {fate}"):
        fs.launch(Fall(how), PROBLEM, nodes=3, steps=10)


@pytest.mark.thorough
def test_a_script_without_a_guard_is_told_what_to_do(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import flockstep as fs\n"
        "from flockstep.workloads.convex import Quadratics\n"
        "fs.launch(fs.LocalSGD(period=2), Quadratics(dim=5), nodes=2, steps=6)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert 'put what the script does under if __name__ == "__main__":' in done.stderr.strip().splitlines()[-1]


def test_functions_of_a_notebook_travel():
    learning_rate = 0.05
    trace = fs.launch(
        fs.LocalSGD(period=2, clip=lambda g, node: g * 0.5),
        PROBLEM,
        nodes=2,
        steps=6,
        optimizer=lambda params: torch.optim.SGD(params, lr=learning_rate),
    )
    assert trace.loss < trace.rows[0].loss


def test_records_reach_the_parent_while_the_run_goes_on():
    rows = []
    trace = fs.launch(fs.LocalSGD(period=2), PROBLEM, nodes=2, steps=6, record_every=2, on_row=rows.append)
    assert rows == trace.rows
    assert [row.step for row in rows] == [0, 2, 4, 6]


def test_a_model_that_is_not_finite_ends_all_nodes():
    # Whoever looks first: the node that would send it, or who records its loss.
    with pytest.raises(fs.Diverged, match=r"is not finite after step|the loss of the average model is"):
        fs.launch(
            fs.LocalSGD(period=2),
            PROBLEM,
            nodes=2,
            steps=400,
            optimizer=lambda params: torch.optim.SGD(params, lr=1e9),
        )


LONG = """
    import os, flockstep as fs
    from dataclasses import dataclass
    from flockstep.workloads.convex import Quadratics

    @dataclass(frozen=True)
    class Long:
        async def run(self, node):
            os.write(1, b"%d\\n" % os.getpid())  # in one piece: nodes share the pipe
            async for k in node.steps():
                await node.mean(node.params)

    if __name__ == "__main__":
        fs.launch(Long(), Quadratics(dim=3), nodes=3, steps=10**9, record_every=10**9)
"""


def start_long_run(folder):
    """A script with three nodes that would run for days; the pids its nodes printed."""
    script = folder / "long.py"
    script.write_text(textwrap.dedent(LONG))
    parent = subprocess.Popen(
        [sys.executable, str(script)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        return parent, [int(parent.stdout.readline()) for _ in range(3)]
    except BaseException:
        parent.kill()
        parent.communicate()
        raise


def assert_gone(pids, seconds=20):
    """Every process ends, soon: looked at again and again, to a deadline."""
    deadline = time.monotonic() + seconds
    while alive := [pid for pid in pids if not is_over(pid)]:
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.02)


def is_over(pid):
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it is gone before the file is opened, or before it is read
        return True


@pytest.mark.cases(test=1)
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_parent_leaves_no_orphan(tmp_path, blow):
    parent, pids = start_long_run(tmp_path)
    try:
        parent.send_signal(blow)
        assert_gone(pids)
        _, errors = parent.communicate(timeout=20)
    finally:
        parent.kill()
        parent.communicate()
    assert parent.returncode != 0
    if blow == signal.SIGINT:
        assert errors.count("KeyboardInterrupt") == 1
        assert "SIGKILL" not in errors


TORCHRUN = """
    import os
    import flockstep as fs
    from flockstep.workloads.convex import Quadratics

    trace = fs.launch(fs.CELGC(period=3, gamma=0.1), Quadratics(dim=5), steps=20)
    (rank, model), = trace.models.items()
    told = f"RESULT {rank} {len(trace.nodes)} {trace.loss.hex()} {[round(x, 5) for x in model.tolist()]}\\n"
    os.write(1, told.encode())  # in one piece: print writes a line in several, and others write in between
"""


def test_the_same_program_started_by_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TORCHRUN))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # The nodes are new interpreters, that torchrun starts.
    done = warm.run(command, cwd=tmp_path, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    results = sorted(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    virtual = fs.simulate(fs.CELGC(period=3, gamma=0.1), PROBLEM, nodes=3, steps=20)
    assert len(results) == 3
    for rank, line in enumerate(results):
        _, said_rank, nodes, loss, *model = line.split(maxsplit=4)
        assert (int(said_rank), int(nodes)) == (rank, 3)
        assert float.fromhex(loss) == pytest.approx(virtual.loss, rel=1e-6)
        assert torch.tensor(eval(model[0])).sub(virtual.models[rank]).abs().max() < 2e-5


def test_a_wrong_number_of_nodes_under_torchrun_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="torchrun started 2 processes"):
        fs.launch(fs.LocalSGD(period=1), PROBLEM, nodes=3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "launch.nodes says how many nodes to start"),
        ({"nodes": 0}, "launch.nodes must be at least 1, got 0"),
        ({"nodes": 2, "on": "clouds"}, "launch.on must be one of 'processes', 'threads', got 'clouds'"),
        ({"nodes": 2, "timeout": 0}, "launch.timeout must be positive"),
        ({"nodes": 2, "steps": 1.5}, "launch.steps must be a whole number, got 1.5"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(arguments, sentence):
    with pytest.raises((ValueError, TypeError)) as caught:
        fs.launch(fs.LocalSGD(period=1), PROBLEM, **arguments)
    assert sentence in str(caught.value)
