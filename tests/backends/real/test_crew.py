"""The crew: members that step on one vector at once, as threads and as processes."""

import gc
import logging
import multiprocessing
import os
import re
import select
import signal
import subprocess
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import warm

from flockstep.backends.real.crew.crew import gather
from flockstep.backends.real.crew.process_crew import ProcessCrew
from flockstep.backends.real.crew.thread_crew import ThreadCrew
from flockstep.errors import FlockstepError, NodeFailed
from flockstep.node import stream
from flockstep.workloads.convex import Quadratics
from flockstep.workloads.module import ModuleWorkload
from flockstep.workloads.noisy import Noisy
from flockstep.workloads.sparse import SparseLogistic

torch.set_num_threads(1)

LONGEST = 120.0
SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
KINDS = [pytest.param(ThreadCrew, id="threads"), pytest.param(ProcessCrew, id="processes", marks=pytest.mark.slow)]
RNG = np.random.default_rng(3)
DATA = RNG.integers(-1, 2, (30, 5)), np.where(RNG.random(30) < 0.5, 1, -1)


def crew_of(kind, workload, params, optimizer=SGD, *, count, seed=5, rank=2):
    """A crew of this kind, whatever the workload would choose."""
    return kind(workload, params, optimizer, count=count, seed=seed, rank=rank, timeout=LONGEST)


def number_of(rng):
    """Which member draws from this generator."""
    return next(iter(rng.bit_generator.seed_seq.entropy[3:]), 0)


class Tally:
    """Four coordinates for each of three members. A step adds 1 to each of the member's own; gradients are zero."""

    def start(self):
        return torch.zeros(12, dtype=torch.float64)

    def gradient(self, x, rng):
        return torch.zeros_like(x)

    def descend(self, x, rng, steps, rate):
        own = x.numpy()[4 * number_of(rng) : 4 * number_of(rng) + 4]
        for _ in range(steps):
            own += 1

    def loss(self, x):
        return 0.0

    def shard(self, rank, size):
        return self


class SparseGradients(Tally):
    """The same by torch: a gradient that has its own coordinates and no others."""

    def gradient(self, x, rng):
        own = 4 * number_of(rng) + torch.arange(4)
        return torch.sparse_coo_tensor(own[None], torch.full((4,), -10.0).double(), (12,), check_invariants=False)


class Failing(Tally):
    """Member 1 raises at its third step."""

    def __init__(self):
        self.steps = 0

    def descend(self, x, rng, steps, rate):
        for _ in range(steps):
            self.steps += 1
            if number_of(rng) == 1 and self.steps == 3:
                raise OverflowError("too much for me")
            super().descend(x, rng, 1, rate)


class Dying(Tally):
    """Member 1 is killed in the midst of its work."""

    def descend(self, x, rng, steps, rate):
        if number_of(rng) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super().descend(x, rng, steps, rate)


class Net(ModuleWorkload):
    """A module with buffers, on batches from the generator."""

    def __init__(self):
        super().__init__(build=_net, seed=1, device="cpu")

    def batch_loss(self, module, rng):
        images = torch.from_numpy(rng.standard_normal((4, 3)).astype(np.float32))
        return (module(images).squeeze(1) - images.sum(1)).square().mean()

    def loss(self, x):
        with self.evaluating(x) as module:
            return float(self.batch_loss(module, np.random.default_rng(0)))

    def shard(self, rank, size):
        return self.with_own_shell()

    @property
    def seen(self):
        """How many batches the module has seen, and their mean as it keeps it."""
        return self._module[1].num_batches_tracked.item(), self._module[1].running_mean.clone()


def _net():
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def plain_loop(workload, optimizer, steps, *, seed=5, rank=2):
    """What a node without a crew does."""
    x = workload.start()
    optimizer, rng = optimizer([x]), stream(seed, rank, "data")
    for _ in range(steps):
        x.grad = workload.gradient(x, rng)
        optimizer.step()
    return x


def members():
    return [child for child in multiprocessing.active_children() if "member" in child.name]


def member_threads():
    return [thread for thread in threading.enumerate() if "member" in thread.name]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, partial(torch.optim.Adam, lr=0.01)])
@pytest.mark.parametrize("make", [Net, partial(Quadratics, dim=7, dtype=torch.float64)])
def test_a_crew_of_one_is_the_plain_worker(kind, optimizer, make):
    workload, plain = make(), make()
    x = workload.start()
    with closing(crew_of(kind, workload, x, optimizer, count=1)) as crew:
        for steps in (1, 0, 2, 30):
            crew.work([steps])
    assert torch.equal(x, plain_loop(plain, optimizer, 33))
    if isinstance(workload, Net):
        assert workload.seen[0] == plain.seen[0] == 33
        assert torch.equal(workload.seen[1], plain.seen[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.cases(check=1, test=2)
def test_a_crew_of_one_on_sparse_rows_is_the_plain_descent(kind, dtype):
    workload = SparseLogistic(data=DATA, batch=2, dtype=dtype)
    x, plain = workload.start(), workload.start()
    with closing(crew_of(kind, workload, x, count=1)) as crew:
        for steps in (1, 0, 2, 30):
            crew.work([steps])
    workload.descend(plain, stream(5, 2, "data"), 33, 0.1)
    assert torch.equal(x, plain)
    assert torch.allclose(x, plain_loop(workload, SGD, 33), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workload", [Tally(), SparseGradients()], ids=["descend", "sparse gradients"])
@pytest.mark.parametrize("rounds", [[[500]], [[400, 300], [0, 7], [1, 0]], [[300, 0, 900], [0, 0, 0], [1, 2, 3]]])
def test_no_step_is_lost_where_members_touch_different_coordinates(kind, workload, rounds):
    x = workload.start()
    with closing(crew_of(kind, workload, x, count=len(rounds[0]))) as crew:
        for steps in rounds:
            crew.work(steps)
    expected = torch.zeros(12, dtype=torch.float64)
    for number, steps in enumerate(zip(*rounds, strict=True)):
        expected[4 * number : 4 * number + 4] = sum(steps)
    assert torch.equal(x, expected)


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, 2, 3])
def test_processes_see_what_the_node_writes_between(members):
    x = Tally().start()
    view = x[4:]
    with closing(crew_of(ProcessCrew, Tally(), x, count=members)) as crew:
        assert x.is_shared()
        crew.work([2] * members)
        x -= 1
        crew.work([3] * members)
    assert torch.equal(x, 5.0 * (torch.arange(12) < 4 * members) - 1)
    assert torch.equal(view, x[4:])


@pytest.mark.parametrize("kind", KINDS)
def test_momentum_is_each_members_own(kind):
    workload = Quadratics(dim=4, dtype=torch.float64, noise=0.0)
    x, oracle = workload.start(), workload.start()
    with closing(crew_of(kind, workload, x, MOMENTUM, count=2)) as crew:
        momenta = [torch.zeros(4).double(), torch.zeros(4).double()]
        # One at a time, so that there is an answer.
        for number in (0, 1, 1, 0, 1, 0, 0):
            crew.work([1 - number, number])
            momenta[number].mul_(0.9).add_(workload.gradient(oracle, None))
            oracle.add_(momenta[number], alpha=-0.1)
            assert torch.allclose(x, oracle, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.slow
def test_members_that_are_modules_learn_together(kind, count):
    workload = Net()
    x, start = workload.start(), workload.loss(workload.start())
    with closing(crew_of(kind, workload, x, partial(torch.optim.SGD, lr=0.05), count=count)) as crew:
        crew.work([200] * count)
        # The node's own module has seen the batches of the first member, and is free for the node to use.
        assert workload.seen[0] == 200
        assert workload.loss(x) < 0.5 * start


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_member_raises_is_raised_and_names_it(kind):
    x = Tally().start()
    with closing(crew_of(kind, Failing(), x, count=3)) as crew:
        with pytest.raises(NodeFailed, match=r"node 2: member 1 of its crew raised OverflowError: too much") as raised:
            crew.work([10, 10, 10])
        assert raised.value.rank == 2
        told = raised.value.__cause__ or raised.value.__notes__[0]
        assert "too much for me" in str(told)
        # The others had ended by then, and all can go on.
        assert x.tolist() == [10.0] * 4 + [2.0] * 4 + [10.0] * 4
        crew.work([1, 1, 1])
    assert x.tolist() == [11.0] * 4 + [3.0] * 4 + [11.0] * 4


@pytest.mark.slow
def test_a_member_that_is_killed_at_work_is_named():
    x = Tally().start()
    with closing(crew_of(ProcessCrew, Dying(), x, count=3)) as crew:
        with pytest.raises(FlockstepError, match=r"node 2: member 1 of its crew was killed by SIGKILL"):
            crew.work([5, 5, 5])
        assert x.tolist() == [5.0] * 4 + [0.0] * 4 + [5.0] * 4
        with pytest.raises(FlockstepError, match="member 1"):
            crew.work([1, 0, 0])
    assert not members()


@pytest.mark.slow
def test_a_member_that_is_killed_between_is_named_and_closing_leaves_nothing():
    # Not marked slow: the one test of processes in the fast suite.
    x = Tally().start()
    crew = crew_of(ProcessCrew, Tally(), x, count=2)
    crew.work([3, 2])
    assert x.tolist() == [3.0] * 4 + [2.0] * 4 + [0.0] * 4
    os.kill(next(child.pid for child in members() if "member 1" in child.name), signal.SIGKILL)
    with pytest.raises(FlockstepError, match=r"node 2: member 1 of its crew was killed by SIGKILL"):
        crew.work([1, 1])
    crew.close()
    crew.close()
    assert not members()
    with pytest.raises(RuntimeError, match="this crew is closed"):
        crew.work([1, 1])


@pytest.mark.slow
def test_ctrl_c_is_none_of_the_members_business():
    x = Tally().start()
    with closing(crew_of(ProcessCrew, Tally(), x, count=2)) as crew:
        for child in members():
            os.kill(child.pid, signal.SIGINT)
        crew.work([2, 2])
    assert x.sum() == 16


@pytest.mark.parametrize("kind", KINDS)
def test_after_ctrl_c_nothing_is_mixed_up(kind, monkeypatch):
    x = Tally().start()
    with closing(crew_of(kind, Tally(), x, count=2)) as crew:
        wait, presses = crew._wait, iter([False, True])

        def interrupted():
            # In the second wait of a call, when members are at work: real signals would come at any time.
            if next(presses, False):
                raise KeyboardInterrupt
            return wait()

        monkeypatch.setattr(crew, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            crew.work([3000, 1])
        crew.work([0, 2])
    # What had not begun need not have been done.
    assert x[0] in (0, 3000)
    assert x[4] in (2, 3)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_closing_leaves_no_thread(count):
    crew = crew_of(ThreadCrew, Tally(), Tally().start(), count=count)
    crew.work([1] * count)
    assert len(member_threads()) == count
    crew.close()
    crew.close()
    assert not member_threads()


def descriptors():
    return set(Path("/proc/self/fd").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc to count descriptors in")
def test_closing_leaves_no_descriptor():
    def once():
        workload = Net()
        x = workload.start()
        with closing(crew_of(ProcessCrew, workload, x, count=2)) as crew:
            crew.work([1, 1])

    # The first starts multiprocessing's own servers, which stay.
    once()
    gc.collect()
    before = descriptors()
    once()
    gc.collect()
    assert descriptors() == before


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from test_crew import *
if __name__ == "__main__":
    crew = crew_of(ProcessCrew, Tally(), Tally().start(), count=2)
    print(*(child.pid for child in members()), flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no descriptors of processes to wait for")
def test_members_die_with_their_node(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(here=str(Path(__file__).parent)))
    with warm.Popen([script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        ends = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
        for end in ends:
            assert select.select([end], [], [], LONGEST)[0]
            os.close(end)
    assert len(ends) == 2


def _as_a_node(line):
    x = Tally().start()
    with closing(crew_of(ProcessCrew, Tally(), x, count=2)) as crew:
        crew.work([3, 4])
    line.send((multiprocessing.current_process().daemon, x.tolist()))


@pytest.mark.slow
def test_a_node_whose_process_is_a_daemon_has_members_too():
    ours, theirs = multiprocessing.Pipe()
    node = multiprocessing.get_context("forkserver").Process(target=_as_a_node, args=(theirs,), daemon=True)
    node.start()
    assert ours.recv() == (True, [3.0] * 4 + [4.0] * 4 + [0.0] * 4)
    node.join()
    assert node.exitcode == 0


class Quiet(Quadratics):
    leaves_interpreter_lock = True


class OwnGradients(SparseLogistic):
    """Changes what a gradient is, and does not say how to descend with that."""

    def gradient(self, x, rng):
        return super().gradient(x, rng) * 2


@pytest.mark.parametrize(
    ("make", "optimizer", "threads", "kind", "why"),
    [
        (partial(SparseLogistic, data=DATA), SGD, 2, "threads", r"SparseLogistic\.descend leaves"),
        (partial(Quiet, dim=4), MOMENTUM, 3, "threads", r"Quiet\.gradient leaves"),
        (partial(Quadratics, dim=4), SGD, 1, "threads", "a single member"),
        (partial(Quadratics, dim=4), SGD, 2, "processes", "Quadratics does not say"),
        (partial(SparseLogistic, data=DATA), MOMENTUM, 2, "processes", "plain SGD on its own"),
        (partial(OwnGradients, data=DATA), SGD, 2, "processes", "plain SGD on its own"),
        (lambda: Noisy(workload=SparseLogistic(data=DATA)), SGD, 2, "processes", "Noisy does not say"),
    ],
)
def test_the_kind_is_chosen_and_told(make, optimizer, threads, kind, why, caplog, monkeypatch):
    if kind == "processes":
        monkeypatch.setattr("flockstep.backends.real.crew.crew.ProcessCrew", crew_by_name)
    workload = make()
    with (
        caplog.at_level(logging.INFO, "flockstep"),
        closing(
            gather(workload, workload.start(), optimizer, threads=threads, seed=0, rank=4, timeout=LONGEST)
        ) as crew,
    ):
        assert crew.kind == kind
    assert len(caplog.messages) == 1
    assert re.match(rf"node 4: a crew of {threads} {kind}, because .*{why}", caplog.messages[0])


def crew_by_name(*args, **kwargs):
    crew = ThreadCrew(*args, **kwargs)
    crew.kind = "processes"
    return crew


@pytest.mark.slow
@pytest.mark.parametrize("make", [partial(Quadratics, dim=4, noise=0.0), Net])
def test_gathered_processes_learn(make):
    workload = make()
    x, start = workload.start(), workload.loss(workload.start())
    with closing(
        gather(workload, x, partial(torch.optim.SGD, lr=0.05), threads=2, seed=0, rank=0, timeout=LONGEST)
    ) as crew:
        assert crew.kind == "processes"
        crew.work([200, 201])
    assert workload.loss(x) < start


@pytest.mark.parametrize("optimizer", [MOMENTUM, partial(torch.optim.SGD, lr=0.1, maximize=True), torch.optim.Adam])
def test_only_plain_sgd_is_left_to_the_workload(optimizer):
    x = Tally().start()
    with closing(crew_of(ThreadCrew, Tally(), x, optimizer, count=2)) as crew:
        crew.work([5, 5])
    # Its gradients are zero, and its own steps are not.
    assert not x.any()


def test_streams_of_members():
    assert stream(3, 1, "data", 0).integers(2**60) == stream(3, 1, "data").integers(2**60)
    drawn = [stream(seed, rank, "data", k).integers(2**60) for seed in (0, 3) for rank in (0, 1) for k in (0, 1, 2)]
    assert len(set(drawn)) == 12


class Locked(Tally):
    """Holds what no other process can have."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_what_cannot_be_sent_is_told():
    with pytest.raises(TypeError, match=r"can be sent to one: .*lock.*\n  what holds locks, files or sockets cannot"):
        crew_of(ProcessCrew, Locked(), Tally().start(), count=2)
    assert not members()


@pytest.mark.slow
def test_functions_without_a_name_can_be_sent():
    x = Tally().start()
    with closing(crew_of(ProcessCrew, Tally(), x, lambda tensors: SGD(tensors), count=2)) as crew:
        crew.work([1, 2])
    assert x.any()


def gathered(**changes):
    plan = {"threads": 1, "seed": 0, "rank": 0, "timeout": 1.0, **changes}
    return gather(Tally(), Tally().start(), SGD, **plan)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gathered(threads=0), r"gather\.threads must be at least 1, got 0"),
        (lambda: gathered(seed=-1), r"gather\.seed must be at least 0"),
        (lambda: gathered(rank=-1), r"gather\.rank must be at least 0"),
        (lambda: gathered(timeout=0), r"gather\.timeout must be positive"),
        (lambda: crew_of(ProcessCrew, Tally(), torch.zeros(3, device="meta"), count=2), "memory of the host, got one"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_steps():
    with closing(gathered()) as crew:
        for steps, message in (([1, 2], r"one number for each of the 1 members, got \[1, 2\]"), ([-1], "at least 0")):
            with pytest.raises(ValueError, match=message):
                crew.work(steps)
        with pytest.raises(TypeError, match=r"Crew\.steps must be a whole number"):
            crew.work([0.5])
