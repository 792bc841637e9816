"""Who else is here: which process of how many this one is, and where they meet, as far as the environment tells.

RANK, WORLD_SIZE             what torchrun sets, and ``flockstep run``; they are believed before all others
OMPI_COMM_WORLD_*, PMI_*     what the mpirun of Open MPI sets, and the mpiexec of MPICH and Intel
SLURM_PROCID, SLURM_STEP_*   what srun sets
MASTER_ADDR, MASTER_PORT     where all meet; srun tells it by itself, mpirun for processes of one machine
FLOCKSTEP_ISLANDS            2x8: these processes are two islands of eight, each one node
FLOCKSTEP_ALONE              1: train alone, whoever else is here

A process that has made a default group of torch.distributed by itself needs none of them. Variables that tell of others
and not of this process's place among them are an error: it would train alone while they wait, or train alone as well.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from flockstep.backends.real.collective import c10d

LOOPBACK = "127.0.0.1"
ISLANDS = "FLOCKSTEP_ISLANDS"
_ALONE = "or set FLOCKSTEP_ALONE=1 to train alone on purpose"
# Below the ports that systems hand out to whoever asks for any.
_PORTS = range(20_000, 30_000)
# The steps of Slurm that nobody started with srun, the batch script and the shell of salloc, have the highest numbers.
_OWN_STEPS = 0xFFFFFFF0
# What the mpiexec of MPICH and Intel starts once on each machine, and what then starts the processes there.
_PROXY = "hydra_pmi_proxy"


@dataclass(frozen=True)
class World:
    """This process among others."""

    by: str
    """Who told: "torchrun", "srun", "mpirun", "mpiexec" or "torch.distributed"."""
    rank: int
    size: int
    local_rank: int = 0
    """Its number among those of its machine."""
    one_machine: bool = False
    """Whether all are known to be on this machine."""
    host: str = ""
    """The machine where they meet, if that is known."""
    job: str = ""
    """What their job is called, the same for all of them and for nobody else, if that is known."""
    store: Any = None
    """The store of the group that torch.distributed has, where that is who told."""

    @property
    def lonely(self) -> bool:
        """Whether there is nobody else; torchrun's single process is a run that others may come to."""
        return self.size == 1 and self.by != "torchrun"

    def __str__(self) -> str:
        said = "has a group of" if self.by == "torch.distributed" else "started"
        return f"{self.by} {said} {self.size} processes"

    def meeting(self) -> tuple[str, int]:
        """Host and port where all of them meet."""
        host, port = os.environ.get("MASTER_ADDR") or self.host, os.environ.get("MASTER_PORT")
        if not host or not (port or self.job):
            missing = "MASTER_PORT" if host else "MASTER_ADDR"
            raise ValueError(
                f"{self}, and {missing} does not say where they meet\n"
                "  set MASTER_ADDR to the machine of rank 0 and MASTER_PORT to a free port there, the same for all"
            )
        if not port:
            return host, _PORTS[zlib.crc32(self.job.encode()) % len(_PORTS)]
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"MASTER_PORT must be a whole number from 1 to 65535, got {port!r}")
        return host, int(port)


def find(*, starts_own: bool = False) -> World | None:
    """The world this process is in; None where nothing tells of one. ValueError where what tells of one is amiss.

    Whoever ``starts_own`` processes is free to do so in an allocation of Slurm that nobody else uses.
    """
    if alone_on_purpose():
        return None
    group = _group()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _torchrun(group)
    if os.environ.get("FLOCKSTEP_JOIN"):
        # RANK is then the number to have in a run that is under way.
        return None
    found = group if group is not None and group.size > 1 else _open_mpi() or _hydra() or _slurm()
    _agree_with_half_of_torchrun(found)
    if found is None and "PMIX_RANK" in os.environ:
        _refuse(
            f"PMIX_RANK is {os.environ['PMIX_RANK']}, but no variable says among how many",
            "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        )
    if found is None and not starts_own:
        _refuse_an_allocation_that_nobody_uses()
    return found


def alone_on_purpose() -> bool:
    """Whether FLOCKSTEP_ALONE says so."""
    text = os.environ.get("FLOCKSTEP_ALONE", "")
    if text not in ("", "0", "1"):
        raise ValueError(f"FLOCKSTEP_ALONE must be 1 or 0, got {text!r}")
    return text == "1"


def columns_of(size: int) -> int:
    """How many processes each island of so many has, as FLOCKSTEP_ISLANDS says; 1 unless it is set."""
    text = os.environ.get(ISLANDS, "")
    if not text:
        return 1
    islands, columns = read_islands(text, ISLANDS)
    if islands * columns != size:
        raise ValueError(f"{ISLANDS} is {text!r}, which are {islands * columns} processes, but there are {size}")
    return columns


def read_islands(text: str, whose: str) -> tuple[int, int]:
    """How many islands of how many processes: 2 and 8 of ``2x8``."""
    match = re.fullmatch(r"([1-9]\d*)\s*x\s*([1-9]\d*)", str(text))
    if match is None:
        raise ValueError(f"{whose} must be how many islands of how many processes, such as '2x8', got {text!r}")
    return int(match[1]), int(match[2])


def first_host(variable: str) -> str:
    """The first machine of a list in Slurm's shorthand: gpu003 of ``gpu[003-005,9],login1``."""
    text = os.environ[variable]
    first = re.match(r"((?:[^\[\],]|\[\d[\d,-]*\])+)(?:,|$)", text)
    if first is None:
        raise ValueError(f"{variable} must be a list of machines such as gpu[003-005,9],login1, got {text!r}")
    return re.sub(r"\[(\d+)[\d,-]*\]", r"\1", first[1])


def _group() -> World | None:
    """The default group that this process has made by itself; it may be of one."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return World("torch.distributed", dist.get_rank(), dist.get_world_size(), store=c10d.default_store())


def _torchrun(group: World | None) -> World:
    rank, size = _place("RANK", "WORLD_SIZE")
    if group is not None and (group.rank, group.size) != (rank, size):
        raise ValueError(
            f"RANK is {rank} and WORLD_SIZE {size}, but torch.distributed was initialised with rank {group.rank} and "
            f"world size {group.size}\n  make them agree, or unset both variables to go by torch.distributed"
        )
    local = _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else 0
    on_one = "LOCAL_WORLD_SIZE" in os.environ and _number("LOCAL_WORLD_SIZE") == size
    # Whoever has set no address has made a group some other way.
    store = None if group is None or os.environ.get("MASTER_ADDR") else group.store
    return World("torchrun", rank, size, local, one_machine=on_one, store=store)


def _agree_with_half_of_torchrun(found: World | None) -> None:
    """Scripts for Slurm like to set WORLD_SIZE and leave the rank to srun: fine, as long as all say the same."""
    for name, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if name not in os.environ:
            continue
        value = _number(name)
        if found is None:
            _refuse(f"{name} is {value}, but {other} is not set", f"set {other} too, unset {name}")
        said = found.rank if name == "RANK" else found.size
        if value != said:
            raise ValueError(f"{name} is {value}, but {found.by} says {said}\n  unset {name}, or set {other} too")


def _open_mpi() -> World | None:
    # Before Slurm's: mpirun's daemons are steps of Slurm, and what they start has the variables of both.
    if "OMPI_COMM_WORLD_RANK" not in os.environ and "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return None
    # With PMIx alone the rank has another name.
    rank, size = _place(_first_set("OMPI_COMM_WORLD_RANK", "PMIX_RANK"), "OMPI_COMM_WORLD_SIZE")
    job = os.environ.get(_first_set("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"), "")
    return _of_mpi("mpirun", rank, size, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", job)


def _hydra() -> World | None:
    if "PMI_RANK" not in os.environ and "PMI_SIZE" not in os.environ:
        return None
    # srun sets these, too, if asked to, but not the number of those on this machine.
    if "MPI_LOCALNRANKS" not in os.environ and _in_a_step():
        return None
    rank, size = _place("PMI_RANK", "PMI_SIZE")
    proxy = _ancestor(_PROXY)
    return _of_mpi("mpiexec", rank, size, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", f"{_PROXY} {proxy}" if proxy else "")


def _of_mpi(by: str, rank: int, size: int, local_rank: str, local_size: str, job: str) -> World:
    local = _number(local_rank) if local_rank in os.environ else 0
    on_one = local_size in os.environ and _number(local_size) == size
    return World(by, rank, size, local, on_one, LOOPBACK if on_one else "", job)


def _slurm() -> World | None:
    if not _in_a_step():
        return None
    rank, size = _place("SLURM_PROCID", _first_set("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    job = os.environ.get(_first_set("SLURM_JOB_ID", "SLURM_JOBID"), "")
    local = _number("SLURM_LOCALID") if "SLURM_LOCALID" in os.environ else 0
    on_one = "SLURM_STEP_NUM_NODES" in os.environ and _number("SLURM_STEP_NUM_NODES") == 1
    machines = _first_set("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    # A machine may not know itself by the name that Slurm has for it.
    host = LOOPBACK if on_one else first_host(machines) if machines in os.environ else ""
    step = os.environ.get("SLURM_STEP_ID", "")
    return World("srun", rank, size, local, on_one, host, f"slurm {job}.{step}" if job else "")


def _in_a_step() -> bool:
    if "SLURM_STEP_ID" in os.environ:
        return _number("SLURM_STEP_ID") < _OWN_STEPS
    return "SLURM_STEP_NUM_TASKS" in os.environ


def _refuse_an_allocation_that_nobody_uses() -> None:
    for name, things in (("SLURM_NTASKS", "tasks"), ("SLURM_JOB_NUM_NODES", "machines")):
        if name in os.environ and (count := _number(name)) > 1:
            _refuse(f"Slurm gave this job {count} {things} ({name}), but srun did not start this process", "use srun")


def _refuse(what: str, remedy: str) -> NoReturn:
    raise ValueError(f"{what}\n  {remedy}, {_ALONE}")


def _place(rank: str, size: str) -> tuple[int, int]:
    """Which of how many, from two variables that must both be there and agree."""
    for name, other in ((rank, size), (size, rank)):
        if name not in os.environ:
            _refuse(f"{name} is not set" + f", but {other} is" * (other in os.environ), f"set {name}")
    number, count = _number(rank), _number(size)
    if count == 0:
        raise ValueError(f"{size} must be at least 1, got 0")
    if number >= count:
        raise ValueError(f"{rank} is {number}, but {size} is {count}\n  ranks count from 0 to {count - 1}")
    return number, count


def _first_set(*names: str) -> str:
    """The first of these variables that is there; the first of all if none is."""
    return next((name for name in names if os.environ.get(name)), names[0])


def _number(name: str) -> int:
    text = os.environ[name].strip()
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name} must be a whole number, got {os.environ[name]!r}")
    return int(text)


def _ancestor(name: str) -> int | None:
    """The process of this name that this one comes from; None without, or on a system that does not tell."""
    process = os.getppid()
    try:
        while process > 1:
            # Its name, in parentheses, may hold any character, parentheses too.
            before, _, after = Path(f"/proc/{process}/stat").read_text().rpartition(")")
            if before.partition("(")[2] == name:
                return process
            process = int(after.split()[1])
    except OSError:
        pass
    return None
