"""``flockstep run``: your own script on several processes, by torch's elastic launcher."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from flockstep import check, units
from flockstep import elastic as fs_elastic
from flockstep.backends.loop.shown_losses import SHOWN
from flockstep.backends.real.launch.cluster_environment import ISLANDS, read_islands
from flockstep.backends.real.security.keys import ranks_in
from flockstep.cli.support import consoles, supervise, watch_session
from flockstep.cores import cores
from flockstep.errors import nodes_named

HELP = """Run your own training script on several processes, one node each.

The script holds your loop with `with fs.join(model, optimizer, strategy)`.
Everything after its name is the script's own. Losses that node 0 logs by
`node.log(loss.item())` are shown now and then. Ends with the script's exit code;
when one node fails, the others are stopped.

\b
[bold]One machine[/bold]
  flockstep run -n 4 train.py --lr 0.1
  flockstep run -n 4 --max-restarts 2 train.py --resume checkpoints --every 100

\b
[bold]Two machines[/bold], the same line on both; the first one is named by both:
  flockstep run -n 4 --nnodes 2 --rdzv-endpoint first.local:29400 train.py

\b
[bold]One-sided strategies[/bold]: nodes that stand by themselves. One that dies ends
nothing, and one can come late, given the address of any that lives:
  flockstep run -n 4 --keep-going --port 29600 train.py
  flockstep run --join 127.0.0.1:29601 train.py
With `--max-restarts` a node that dies is started again, alone; when all die at
once, they go on from their checkpoints (`fs.join(..., resume=, save_every=)`).
Between machines their mailboxes need keys: see `flockstep keys create --help`.

\b
[bold]Strategies that take means[/bold], where nodes die and come: with `--elastic` the
others go on, and who is started again, or joins, takes over their state:
  flockstep run -n 4 --elastic --max-restarts 5 --port 29600 train.py
  flockstep run --elastic --join 127.0.0.1:29601 train.py

\b
[bold]Islands[/bold]: nodes of several processes that train one model, by FSDP2 or DDP:
  flockstep run --islands 2x4 train.py
  flockstep run --islands 2x8 --nnodes 2 --rdzv-endpoint first.local:29400 train.py

\b
[bold]To see it train[/bold], on a page of this machine:
  flockstep run -n 4 --watch train.py

A thin wrapper of torchrun: `torchrun --nproc-per-node 4 train.py` works as well.
"""

# What a node may take to end by itself when told to, before it is killed.
_GRACE = 10
_LOOPBACK = "127.0.0.1"
_NODES_WITHOUT_GPU = 2

Script = Annotated[Path, typer.Argument(metavar="SCRIPT", help="Your training script.", show_default=False)]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="Its own arguments, untouched.")]
Processes = Annotated[
    int | None,
    typer.Option("-n", "--nproc-per-node", help="Nodes on this machine; one per GPU unless given, 2 without GPUs."),
]
Machines = Annotated[int, typer.Option("--nnodes", help="How many machines; start this command on each.")]
MachineRank = Annotated[
    int | None,
    typer.Option("--node-rank", help="This machine's number, to fix the order; dealt out unless given."),
]
Endpoint = Annotated[
    str | None, typer.Option("--rdzv-endpoint", help="HOST:PORT of the first machine, where all of them meet.")
]
Restarts = Annotated[int, typer.Option("--max-restarts", help="How often to start all nodes again when one fails.")]
Islands = Annotated[
    str | None,
    typer.Option("--islands", help="2x8: two nodes of eight processes, each of which has a part of its node's model."),
]
KeepGoing = Annotated[
    bool, typer.Option("--keep-going", help="Start nodes one by one; when one dies, the others go on.")
]
Elastic = Annotated[
    bool,
    typer.Option("--elastic", help="Let strategies that take means go on without nodes that die, and take them in."),
]
MinNodes = Annotated[
    int | None,
    typer.Option("--min-nodes", help="With --elastic: least nodes that go on together; more than half of the last."),
]
Patience = Annotated[
    str | None, typer.Option("--patience", help="With --elastic: how long a node may be silent, such as '5 s'.")
]
Join = Annotated[
    str | None,
    typer.Option("--join", help="HOST:PORT of a node of a run that is under way; several, separated by commas."),
]
Rank = Annotated[
    int | None,
    typer.Option("--rank", help="With --join: this node's number. Unless given, its keys', or the next free."),
]
KeysFolder = Annotated[
    Path | None, typer.Option("--keys", help="Folder of `flockstep keys create`, or this machine's part of it.")
]
Host = Annotated[str | None, typer.Option("--host", help="Address that mailboxes listen on and are reached at.")]
Port = Annotated[int | None, typer.Option("--port", help="Node i listens on PORT + i.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Let mailboxes listen beyond this machine without keys.")]
Timeout = Annotated[str | None, typer.Option("--timeout", help="How long any wait may last, such as '30 s'.")]
Watch = Annotated[bool, typer.Option("--watch", help="Serve a page of the run on this machine while it goes on.")]
JournalFolder = Annotated[
    Path | None, typer.Option("--journal", help="Folder that nodes keep journals in, for `flockstep watch`.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error of the launcher.")]


def run(
    script: Script,
    arguments: Arguments = None,
    nproc_per_node: Processes = None,
    nnodes: Machines = 1,
    node_rank: MachineRank = None,
    rdzv_endpoint: Endpoint = None,
    max_restarts: Restarts = 0,
    islands: Islands = None,
    keep_going: KeepGoing = False,
    elastic: Elastic = False,
    min_nodes: MinNodes = None,
    patience: Patience = None,
    join: Join = None,
    rank: Rank = None,
    keys: KeysFolder = None,
    host: Host = None,
    port: Port = None,
    insecure: Insecure = False,
    timeout: Timeout = None,
    watch: Watch = False,
    journal: JournalFolder = None,
    debug: Debug = False,
) -> None:
    """Run a script on several processes."""
    with consoles.plain_errors(debug=debug):
        if islands is not None:
            alone = not (keep_going or elastic or join)
            nproc_per_node = _processes_of_islands(islands, nproc_per_node, nnodes, together=alone)
        default = 1 if join else _processes()
        processes = check.whole("run", "-n", default if nproc_per_node is None else nproc_per_node)
        check.whole("run", "--nnodes", nnodes)
        check.whole("run", "--max-restarts", max_restarts, at_least=0)
        _set_elastic(elastic, min_nodes, patience)
        keep_going = keep_going or elastic
        machine = _machine(nnodes, node_rank, rdzv_endpoint) if keep_going else 0
        meeting = {} if keep_going or join else _meeting(nnodes, node_rank, rdzv_endpoint, max_restarts)
        if not script.is_file():
            raise ValueError(f"there is no script {str(script)!r} in {Path.cwd()}")
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
        os.environ.setdefault(SHOWN, "1")
        _set_mailboxes(keys, host, port, insecure, timeout)
        command = [str(script), *(arguments or ())]
        if rank is not None and not join:
            raise ValueError("--rank is for a node that joins; give --join HOST:PORT as well")
        if join and rank is None:
            _check_keys_of_newcomers(processes)
        with watch_session.watching(watch, journal, fresh=nnodes == 1 and not join):
            if join:
                code = supervise.keep_going(command, supervise.newcomers(processes, join, rank), restarts=max_restarts)
            elif keep_going:
                with supervise.founders(processes, nnodes, machine, rdzv_endpoint) as environments:
                    code = supervise.keep_going(command, environments, restarts=max_restarts)
            else:
                code = _launch(command, processes, nnodes, max_restarts, meeting)
    raise typer.Exit(code)


def _processes_of_islands(text: str, processes: int | None, machines: int, *, together: bool) -> int:
    """How many processes that makes on each machine; nodes read from their environment what they are."""
    islands, columns = read_islands(text, "--islands")
    each, rest = divmod(islands * columns, check.whole("run", "--nnodes", machines))
    if rest or processes not in (None, each):
        given = "" if processes is None else f" with -n {processes}"
        raise ValueError(f"--islands {text} are {islands * columns} processes, not {machines} machines{given}")
    if not together:
        raise ValueError("--islands end together: --keep-going, --elastic and --join are of nodes that are one process")
    os.environ[ISLANDS] = f"{islands}x{columns}"
    return each


def _set_elastic(elastic: bool, min_nodes: int | None, patience: str | None) -> None:
    """What nodes read from their environment, checked here once."""
    if not elastic:
        if min_nodes is not None or patience is not None:
            raise ValueError("--min-nodes and --patience are of a run whose nodes come and go: give --elastic, too")
        return
    os.environ[fs_elastic.ELASTIC] = "1"
    for name, value in ((fs_elastic.MIN_NODES, min_nodes), (fs_elastic.PATIENCE, patience)):
        if value is not None:
            os.environ[name] = str(value)
    # What it refuses is refused here, and not by every node.
    fs_elastic.from_environment()


def _set_mailboxes(keys: Path | None, host: str | None, port: int | None, insecure: bool, timeout: str | None) -> None:
    """What nodes read from their environment, checked here once instead of in every one of them."""
    if keys is not None:
        if not keys.is_dir():
            raise ValueError(f"--keys must be a folder, there is none at {str(keys)!r}")
        os.environ["FLOCKSTEP_KEYS"] = str(keys.resolve())
    if timeout is not None:
        check.positive("run", "--timeout", units.seconds(timeout, "run.--timeout"))
        os.environ["FLOCKSTEP_TIMEOUT"] = timeout
    if port is not None:
        if not 0 < port < 65536:
            raise ValueError(f"--port must be between 1 and 65535, got {port}")
        os.environ["FLOCKSTEP_PORT"] = str(port)
    if host is not None:
        os.environ["FLOCKSTEP_HOST"] = host
    if insecure:
        os.environ["FLOCKSTEP_INSECURE"] = "1"


def _check_keys_of_newcomers(processes: int) -> None:
    """With keys, as many nodes can join as there are certificates."""
    folder = os.environ.get("FLOCKSTEP_KEYS")
    ranks = ranks_in(Path(folder)) if folder else None
    if ranks is not None and 0 < len(ranks) < processes:
        raise ValueError(f"{processes} nodes cannot join with the keys in {folder}, which are of {nodes_named(ranks)}")


def _machine(machines: int, rank: int | None, endpoint: str | None) -> int:
    """This machine's number among those whose nodes stand by themselves: nobody is there to deal it out."""
    if machines == 1:
        if endpoint is not None or rank not in (None, 0):
            raise ValueError("--rdzv-endpoint and --node-rank are for several machines; give --nnodes as well")
        return 0
    if rank is None or endpoint is None:
        raise ValueError(
            "--keep-going or --elastic on several machines needs --node-rank and --rdzv-endpoint HOST:PORT on each"
        )
    if not 0 <= rank < machines:
        raise ValueError(f"--node-rank must be between 0 and {machines - 1}, got {rank}")
    return rank


def _meeting(machines: int, rank: int | None, endpoint: str | None, restarts: int) -> dict[str, Any]:
    """How the launchers of all machines find each other."""
    if machines == 1:
        if endpoint is not None or rank not in (None, 0):
            raise ValueError("--rdzv-endpoint and --node-rank are for several machines; give --nnodes as well")
        # A free port of this machine, by its number: looking up its name can take seconds.
        place = {"rdzv_endpoint": f"{_LOOPBACK}:0", "local_addr": _LOOPBACK, "run_id": uuid.uuid4().hex}
        return {"rdzv_backend": "c10d", **place}
    if endpoint is None or not endpoint.rpartition(":")[2].isdigit():
        raise ValueError(f"--rdzv-endpoint must be HOST:PORT of the first of {machines} machines, got {endpoint!r}")
    place = {"rdzv_endpoint": endpoint, "run_id": "flockstep"}
    if rank is None:
        return {"rdzv_backend": "c10d", **place}
    if not 0 <= rank < machines:
        raise ValueError(f"--node-rank must be between 0 and {machines - 1}, got {rank}")
    if restarts:
        # Launchers with fixed numbers do not tell each other of a restart, and would wait for one another in vain.
        raise ValueError("--max-restarts needs numbers that are dealt out; leave --node-rank away")
    return {"rdzv_backend": "static", "rdzv_configs": {"rank": rank}, **place}


def _launch(command: Sequence[str], processes: int, machines: int, restarts: int, meeting: dict[str, Any]) -> int:
    """Hand over to torch, and give back the exit code."""
    # Here, because it takes a while, and other commands have no use for it.
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The launcher would fill in ${local_rank}, and halve $$; the script's arguments are not its to change.
    untouched = [word.replace("$", "$$") for word in command]
    with tempfile.TemporaryDirectory(prefix="flockstep-") as logs:
        config = LaunchConfig(
            min_nodes=machines,
            max_nodes=machines,
            nproc_per_node=processes,
            max_restarts=restarts,
            shutdown_timeout=_GRACE,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            **meeting,
        )
        try:
            elastic_launch(config, sys.executable)("-u", *untouched)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            return _report_failure(rank, failure.pid, failure.exitcode)
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            consoles.complain(f"Stopped by {error.sigval.name}.")
            return 128 + error.sigval
    return 0


def _report_failure(rank: int, pid: int, code: int) -> int:
    consoles.complain(f"Node {rank} (process {pid}) {supervise.how(code)}; the others were stopped.")
    # As a shell tells of a process that a signal ended.
    return 128 - code if code < 0 else code


def _processes() -> int:
    return torch.cuda.device_count() or _NODES_WITHOUT_GPU
