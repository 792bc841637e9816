"""Islands as real processes: a function runs in each, and what it returned comes back, by island and column."""

import multiprocessing
import os
import tempfile
import traceback
from multiprocessing.connection import wait

import cloudpickle
import torch

from flockstep.backends.real.launch.child_processes import begin_as_child, context

PATIENCE = 240


def run(function, islands, columns, *arguments, shards=True):
    """``function(mesh, island, *arguments)`` in islands times columns processes; results[island][column]."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, theirs = zip(*(context().Pipe(duplex=False) for _ in range(islands * columns)), strict=True)
        told = (theirs, folder, islands, columns, cloudpickle.dumps((function, arguments)), shards)
        nursery = context().Process(target=bear, args=told)
        nursery.start()
        for pipe in theirs:
            pipe.close()
        try:
            found = listen({pipe: rank for rank, pipe in enumerate(pipes)})
        finally:
            # Whoever it has forked ends with it.
            nursery.kill()
            nursery.join()
    return [[found[island * columns + column] for column in range(columns)] for island in range(islands)]


def listen(pipes):
    found = {}
    while pipes:
        ready = wait(list(pipes), PATIENCE)
        assert ready, f"nothing from processes {sorted(pipes.values())}"
        for pipe in ready:
            rank = pipes.pop(pipe)
            try:
                kind, thing = cloudpickle.loads(pipe.recv_bytes())
            except EOFError:
                raise AssertionError(f"process {rank} ended without a word") from None
            assert kind == "result", f"process {rank}: {thing}"
            found[rank] = thing
    return found


def bear(pipes, folder, islands, columns, job, shards):
    """Import once what takes seconds, and fork."""
    begin_as_child()
    if shards:
        import torch.distributed.fsdp  # noqa: F401

    told = [(pipes, rank, folder, islands, columns, job) for rank in range(len(pipes))]
    members = [multiprocessing.get_context("fork").Process(target=live, args=one) for one in told]
    for member in members:
        member.start()
    for pipe in pipes:
        pipe.close()
    for member in members:
        member.join()


def live(pipes, rank, folder, islands, columns, job):
    begin_as_child()
    for other, pipe in enumerate(pipes):
        if other != rank:
            pipe.close()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(islands * columns), "FLOCKSTEP_STORE": f"{folder}/store"}
    os.environ["FLOCKSTEP_TIMEOUT"] = "120"
    torch.set_num_threads(1)
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    try:
        function, arguments = cloudpickle.loads(job)
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=islands * columns)
        mesh = init_device_mesh("cpu", (islands, columns), mesh_dim_names=("island", "column"))["column"]
        said = ("result", function(mesh, rank // columns, *arguments))
    except BaseException:
        said = ("error", traceback.format_exc())
    # By value: tensors that travel as handles would need this process to stay.
    pipes[rank].send_bytes(cloudpickle.dumps(said))
    pipes[rank].close()
    # What others still want of a group that is gone would hold up an orderly exit.
    os._exit(0)
