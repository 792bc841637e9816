"""Who else is here: variables of torchrun, srun and mpirun, groups of torch.distributed, and what may be amiss."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch.distributed as dist
import warm

import flockstep as fs
from flockstep.backends.real.join import joined, late_join
from flockstep.backends.real.launch import cluster_environment
from flockstep.backends.real.launch.cluster_environment import World, find, first_host
from flockstep.workloads.convex import Quadratics

ROOT = Path(__file__).parents[3]
TELLING = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "SLURM_",
    "OMPI_",
    "PMI",
    "MPI_LOCAL",
    "FLOCKSTEP_",
    "TORCHELASTIC_",
)
STEP = {
    "SLURM_JOB_ID": "71",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[003-005,9],login1",
}
BATCH = {"SLURM_JOB_ID": "71", "SLURM_PROCID": "0", "SLURM_JOB_NUM_NODES": "1"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "PMIX_RANK": "2",
    "PMIX_NAMESPACE": "1278607361",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}


def without_others():
    """This environment, less whatever the tests themselves were started by."""
    return {name: value for name, value in os.environ.items() if not name.startswith(TELLING)}


@pytest.fixture
def told(monkeypatch):
    """Have the environment tell this and nothing else."""

    def told(**variables):
        for name in list(os.environ):
            if name.startswith(TELLING):
                monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    told()
    return told


@contextmanager
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("variables", "world"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, World("torchrun", 1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "1"} | STEP | MPIRUN, World("torchrun", 0, 1)),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"},
            World("torchrun", 3, 4, 3, one_machine=True),
        ),
        (STEP, World("srun", 1, 4, 0, False, "gpu003", "slurm 71.2")),
        (STEP | {"PMI_RANK": "1", "PMI_SIZE": "4"}, World("srun", 1, 4, 0, False, "gpu003", "slurm 71.2")),
        (STEP | {"PMIX_RANK": "1"}, World("srun", 1, 4, 0, False, "gpu003", "slurm 71.2")),
        (STEP | {"WORLD_SIZE": "4"}, World("srun", 1, 4, 0, False, "gpu003", "slurm 71.2")),
        (STEP | {"RANK": "1"}, World("srun", 1, 4, 0, False, "gpu003", "slurm 71.2")),
        (
            STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_LOCALID": "1"},
            World("srun", 1, 4, 1, True, "127.0.0.1", "slurm 71.2"),
        ),
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "a,b"},
            World("srun", 0, 2, host="a"),
        ),
        (MPIRUN, World("mpirun", 2, 3, 2, True, "127.0.0.1", "1278607361")),
        (MPIRUN | STEP, World("mpirun", 2, 3, 2, True, "127.0.0.1", "1278607361")),
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, World("mpirun", 2, 3, 2, job="1278607361")),
        ({"PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, World("mpirun", 1, 2)),
        (HYDRA, World("mpiexec", 1, 3, 1, True, "127.0.0.1")),
        (HYDRA | STEP, World("mpiexec", 1, 3, 1, True, "127.0.0.1")),
        (HYDRA | {"MPI_LOCALNRANKS": "2"}, World("mpiexec", 1, 3, 1)),
        (BATCH | {"SLURM_NTASKS": "1"}, None),
        (STEP | {"FLOCKSTEP_ALONE": "1", "RANK": "4"}, None),
        (BATCH | {"SLURM_NTASKS": "4", "FLOCKSTEP_ALONE": "1"}, None),
        ({"RANK": "3", "FLOCKSTEP_JOIN": "127.0.0.1:1"}, None),
    ],
)
def test_what_the_environment_tells(told, variables, world):
    told(**variables)
    assert find() == world


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"RANK": "1"},
            "RANK is 1, but WORLD_SIZE is not set\n  set WORLD_SIZE too, unset RANK, or set FLOCKSTEP_ALONE=1",
        ),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is not set\n  set RANK too"),
        ({"RANK": "two", "WORLD_SIZE": "4"}, "RANK must be a whole number, got 'two'"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE must be a whole number, got ''"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK must be a whole number, got '-1'"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK is 4, but WORLD_SIZE is 4\n  ranks count from 0 to 3"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE must be at least 1, got 0"),
        (STEP | {"WORLD_SIZE": "8"}, "WORLD_SIZE is 8, but srun says 4"),
        (STEP | {"RANK": "2"}, "RANK is 2, but srun says 1"),
        (STEP | {"SLURM_PROCID": "4"}, "SLURM_PROCID is 4, but SLURM_STEP_NUM_TASKS is 4"),
        (STEP | {"SLURM_STEP_NUM_TASKS": "many"}, "SLURM_STEP_NUM_TASKS must be a whole number, got 'many'"),
        (STEP | {"SLURM_STEP_NODELIST": "gpu[003"}, "SLURM_STEP_NODELIST must be a list of machines"),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}, "SLURM_PROCID is not set, but SLURM_NTASKS is"),
        (
            BATCH | {"SLURM_NTASKS": "4"},
            "Slurm gave this job 4 tasks (SLURM_NTASKS), but srun did not start this process\n"
            "  use srun, or set FLOCKSTEP_ALONE=1 to train alone on purpose",
        ),
        (BATCH | {"SLURM_JOB_NUM_NODES": "2"}, "Slurm gave this job 2 machines (SLURM_JOB_NUM_NODES)"),
        # The shell that salloc opens is a step, and nobody's training.
        (STEP | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, "Slurm gave this job 4 tasks"),
        (
            {"PMIX_RANK": "3"},
            "PMIX_RANK is 3, but no variable says among how many\n  set RANK, WORLD_SIZE, MASTER_ADDR",
        ),
        ({"PMI_RANK": "3"}, "PMI_SIZE is not set, but PMI_RANK is\n  set PMI_SIZE, or set FLOCKSTEP_ALONE=1"),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, "OMPI_COMM_WORLD_RANK is not set, but OMPI_COMM_WORLD_SIZE is"),
        ({"FLOCKSTEP_ALONE": "yes"}, "FLOCKSTEP_ALONE must be 1 or 0, got 'yes'"),
    ],
)
def test_a_world_that_is_seen_and_cannot_be_used_is_an_error(told, variables, sentence):
    told(**variables)
    for ask in (find, fs.rank, fs.size):
        with pytest.raises(ValueError) as caught:
            ask()
        assert str(caught.value).startswith(sentence)


def test_alone_and_in_a_run_under_way_is_a_contradiction(told):
    told(FLOCKSTEP_ALONE="1", FLOCKSTEP_JOIN="127.0.0.1:1")
    with pytest.raises(ValueError, match=r"FLOCKSTEP_ALONE is 1, but FLOCKSTEP_JOIN is '127\.0\.0\.1:1'"):
        late_join.join_late()


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("login1", "login1"),
        ("gpu[003-005,9],login1", "gpu003"),
        ("login1,gpu[003-005,9]", "login1"),
        ("rack[2-3]n[07,09]-ib.cluster", "rack2n07-ib.cluster"),
        ("10.0.0.7", "10.0.0.7"),
    ],
)
def test_the_first_machine_of_a_list(told, text, first):
    told(LIST=text)
    assert first_host("LIST") == first


@pytest.mark.parametrize("text", ["", ",a", "gpu[", "gpu[]", "gpu[x-y]", "[", "gpu[1-2"])
def test_no_list_of_machines(told, text):
    told(LIST=text)
    with pytest.raises(ValueError, match=r"LIST must be a list of machines such as gpu\[003-005,9\],login1, got "):
        first_host("LIST")


def test_all_processes_of_a_job_meet_in_one_place_and_jobs_in_different_ones(told):
    told(**STEP)
    mine = find().meeting()
    told(**STEP | {"SLURM_PROCID": "3", "SLURM_LOCALID": "1"})
    assert find().meeting() == mine
    told(**STEP | {"SLURM_STEP_ID": "3"})
    assert find().meeting() != mine
    assert mine[0] == "gpu003"
    assert mine[1] in range(20_000, 30_000)
    told(**STEP | {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"})
    assert find().meeting() == ("10.0.0.7", 29500)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            "mpirun started 3 processes, and MASTER_ADDR does not say where",
        ),
        (HYDRA, "mpiexec started 3 processes, and MASTER_PORT does not say where they meet\n  set MASTER_ADDR"),
        (MPIRUN | {"MASTER_PORT": "http"}, "MASTER_PORT must be a whole number from 1 to 65535, got 'http'"),
        (STEP | {"MASTER_PORT": "65536"}, "MASTER_PORT must be a whole number from 1 to 65535, got '65536'"),
    ],
)
def test_a_place_to_meet_that_is_not_known_is_an_error(told, variables, sentence):
    told(**variables)
    with pytest.raises(ValueError) as caught:
        fs.rank()
    assert str(caught.value).startswith(sentence)


def test_a_port_that_is_taken_is_told_with_the_remedy(told):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        told(**MPIRUN | {"OMPI_COMM_WORLD_RANK": "0", "MASTER_PORT": str(port), "FLOCKSTEP_TIMEOUT": "5"})
        with pytest.raises(RuntimeError) as caught:
            fs.rank()
    assert f"mpirun started 3 processes, which meet at 127.0.0.1:{port}" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "variables",
    [
        STEP | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"},
        MPIRUN | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        HYDRA | {"PMI_RANK": "0", "PMI_SIZE": "1"},
    ],
)
def test_a_world_of_one_trains_alone(told, variables):
    told(**variables)
    assert joined.started_by_others() is None
    assert (fs.rank(), fs.size()) == (0, 1)


def test_a_group_of_torch_distributed_must_be_the_one_the_variables_tell_of(told):
    with group_of_one():
        assert (fs.rank(), fs.size()) == (0, 1)
        told(RANK="0", WORLD_SIZE="4")
        with pytest.raises(ValueError) as caught:
            find()
        told(**STEP)
        assert find().by == "srun"
    assert str(caught.value).startswith(
        "RANK is 0 and WORLD_SIZE 4, but torch.distributed was initialised with rank 0 and world size 1"
    )


def test_launch_counts_those_who_are_there(told):
    told(**STEP)
    with pytest.raises(ValueError, match=r"launch\.nodes is 3, but srun started 4 processes; leave nodes out"):
        fs.launch(fs.LocalSGD(period=1), Quadratics(dim=3), nodes=3)
    told(**BATCH | {"SLURM_NTASKS": "4"})
    with pytest.raises(ValueError, match="Slurm gave this job 4 tasks"):
        fs.launch(fs.LocalSGD(period=1), Quadratics(dim=3))


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30.0), ("2.5", 2.5), ("30 s", 30.0), ("5 min", 300.0), ("250 ms", 0.25), ("", 300.0)]
)
def test_a_timeout_is_in_seconds_or_has_a_unit(told, text, seconds):
    told(FLOCKSTEP_TIMEOUT=text)
    assert joined.timeout() == seconds


@pytest.mark.parametrize("text", ["soon", "30 parsecs", "-1", "0", "0 s", "inf", "nan"])
def test_no_timeout(told, text):
    told(FLOCKSTEP_TIMEOUT=text)
    with pytest.raises(ValueError, match="FLOCKSTEP_TIMEOUT"):
        joined.timeout()


TRAIN = """
    import json, os, torch
    import flockstep as fs
    from flockstep.workloads.convex import Quadratics


    def main():
        torch.manual_seed(fs.rank())
        x = torch.randn(32, 4)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with fs.join(model, optimizer, fs.LocalSGD(period=3)) as node:
            for _ in range(6):
                optimizer.zero_grad()
                (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
                optimizer.step()
            node.average_model()
        # One after the other: neither may read what the one before it wrote.
        traces = [fs.launch(fs.LocalSGD(period=2), Quadratics(dim=3), steps=steps) for steps in (4, 8)]
        steps = [[node.steps for node in trace.nodes] for trace in traces]
        said = {"rank": fs.rank(), "size": fs.size(), "weights": model.weight.flatten().tolist(), "steps": steps}
        os.write(1, (json.dumps(said) + "\\n").encode())  # in one piece: processes may share a pipe


    if __name__ == "__main__":
        main()
"""
SPAWN = """
    import sys
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from train import main


    def child(rank, store):
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
        main()
        dist.destroy_process_group()


    if __name__ == "__main__":
        mp.start_processes(child, (sys.argv[1],), nprocs=3, start_method="fork")
"""
SLOWLY = {"OMP_NUM_THREADS": "1", "FLOCKSTEP_TIMEOUT": "120", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def run(tmp_path):
    """Run commands side by side, each with variables of its own; what all of them said, by rank."""
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    (tmp_path / "spawn.py").write_text(textwrap.dedent(SPAWN))
    processes = []

    def run(*commands):
        for command, variables in commands:
            environment = without_others() | SLOWLY | variables
            if command[0].endswith(".py"):
                processes.append(warm.Started(command, tmp_path, environment))
                continue
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes))
        lines = []
        for process in processes:
            said, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
            lines += [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        return sorted(lines, key=lambda line: line["rank"])

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def assert_trained_together(said):
    assert [(line["rank"], line["size"]) for line in said] == [(rank, 3) for rank in range(3)]
    assert [line["weights"] for line in said] == [said[0]["weights"]] * 3
    assert [line["steps"] for line in said] == [[[4] * 3, [8] * 3]] * 3


def free_job():
    """The number of a job whose own port is free."""
    jobs = itertools.count(os.getpid())
    return str(next(job for job in jobs if is_free(World("srun", 0, 3, host="127.0.0.1", job=f"slurm {job}.0"))))


def is_free(world):
    try:
        socket.create_server(world.meeting()).close()
    except OSError:
        return False
    return True


@pytest.mark.thorough
def test_three_tasks_of_a_slurm_step(run, told):
    job = free_job()
    step = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "3"}
    step |= {"SLURM_STEP_NODELIST": "localhost"}
    one = ["train.py"]
    assert_trained_together(
        run(*((one, step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in range(3)))
    )


@pytest.mark.thorough
def test_three_processes_with_the_variables_of_mpiexec(run):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    one = ["train.py"]
    numbers = ({"PMI_RANK": str(rank), "MPI_LOCALRANKID": str(rank)} for rank in range(3))
    assert_trained_together(run(*((one, HYDRA | number | {"MASTER_PORT": port}) for number in numbers)))


@pytest.mark.slow
def test_three_processes_with_a_group_of_their_own(run, tmp_path):
    assert_trained_together(run((["spawn.py", str(tmp_path / "store")], {})))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun on the PATH")
def test_three_processes_of_mpirun(run):
    # Containers have one user and few cores; each kind of mpirun reads what is for it.
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    crowded = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    assert_trained_together(run((["mpirun", "-n", "3", sys.executable, "train.py"], allowed | crowded)))


@pytest.mark.slow
def test_launch_starts_its_own_in_a_batch_script(told):
    told(**BATCH | {"SLURM_NTASKS": "4"})
    assert len(fs.launch(fs.LocalSGD(period=1), Quadratics(dim=3), nodes=2, steps=2).nodes) == 2
    told(**STEP | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"})
    assert len(fs.launch(fs.LocalSGD(period=1), Quadratics(dim=3), nodes=2, steps=2).nodes) == 2
    assert len(fs.launch(fs.LocalSGD(period=1), Quadratics(dim=3), steps=2).nodes) == 1


def test_this_machine_tells_who_a_process_comes_from():
    name = Path(f"/proc/{os.getppid()}/comm")
    if not name.exists():
        pytest.skip("looks at /proc")
    assert cluster_environment._ancestor(name.read_text().strip()) == os.getppid()
    assert cluster_environment._ancestor("nobody has this name") is None
