"""Which processes train one model together: as the model's shards say, or ``join(..., island=)``.

And what an island cannot do yet, each refused by name.
"""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from flockstep.averages.powersgd import PowerSGD
from flockstep.strategy import describe, is_one_sided

_MESH = 'init_device_mesh("cuda", (islands, columns), mesh_dim_names=("island", "column"))["column"]'


def group_of(model: nn.Module, island: Any) -> Any:
    """The process group of this model's island; None where this process has the model alone."""
    if not isinstance(model, nn.Module):
        return None
    _gather_no_longer(model)
    sharded = _group_of_shards(model)
    if island is None:
        return sharded
    given = _group_of(island)
    if sharded is not None and ranks_of(sharded) != ranks_of(given):
        raise ValueError(
            f"join.island has the processes {list(ranks_of(given))}, but the model is sharded among "
            f"{list(ranks_of(sharded))}\n  leave island= out: shards say who belongs together"
        )
    return given


def ranks_of(group: Any) -> tuple[int, ...]:
    """The processes of a group, by their numbers among all."""
    return tuple(dist.get_process_group_ranks(group))


def _group_of(island: Any) -> Any:
    if hasattr(island, "get_group") and hasattr(island, "ndim"):
        if island.ndim != 1:
            raise ValueError(
                f"join.island must be a mesh of one dimension, got one of {island.ndim}\n  take the inner one: {_MESH}"
            )
        return island.get_group()
    if not (dist.is_available() and isinstance(island, dist.ProcessGroup)):
        raise TypeError(
            f"join.island must be a DeviceMesh of one dimension or a process group, got {island!r}\n"
            f"  such as fs.place().mesh(), or {_MESH}"
        )
    return island


def _group_of_shards(model: nn.Module) -> Any:
    meshes: dict[tuple[int, ...], tuple[str, Any]] = {}
    for name, parameter in model.named_parameters():
        mesh: Any = getattr(parameter, "device_mesh", None)
        if mesh is None:
            continue
        _check_shards(name, parameter, mesh)
        meshes.setdefault(ranks_of(mesh.get_group()), (name, mesh))
    if len(meshes) > 1:
        (one, first), (other, second) = list(meshes.values())[:2]
        raise ValueError(
            f"parameters {one} and {other} are sharded among different processes ({first} and {second}), which are no "
            "island\n  shard all of the model over one mesh"
        )
    return next((mesh.get_group() for _, mesh in meshes.values()), None)


def _check_shards(name: str, parameter: Tensor, mesh: Any) -> None:
    if mesh.ndim > 1:
        raise NotImplementedError(
            f"parameter {name} is sharded over a mesh of {mesh.ndim} dimensions (HSDP, or FSDP with tensor parallel), "
            f"and an island has one for now\n  fully_shard(model, mesh={_MESH})"
        )
    placements: Any = getattr(parameter, "placements", ())
    if any(placement.is_partial() for placement in placements):
        raise TypeError(f"parameter {name} is a partial sum ({placements}), which is nothing to average")


def _gather_no_longer(model: nn.Module) -> None:
    """After an evaluation FSDP's outermost module may still have its parameters whole."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    for module in model.modules() if fsdp is not None else ():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()


def check_join(strategy: Any, *, elastic: object, budget: object) -> None:
    """NotImplementedError for what an island cannot do yet."""
    if elastic is not None:
        raise NotImplementedError(
            "islands are not elastic yet: the death of one process ends the run\n  leave elastic= and --elastic out"
        )
    if budget is not None:
        raise NotImplementedError(
            "islands have no budget yet: members would have to see it end at one step\n  let the loop count its steps"
        )
    if is_one_sided(strategy):
        raise NotImplementedError(
            f"{describe(strategy)} is one-sided: nodes come in and meet one by one, and the processes of an island "
            "would have to agree on whom they met and when\n"
            "  take one whose nodes wait for each other, such as LocalSGD(period=8), DiLoCo() or NoLoCo()"
        )
    if isinstance(getattr(strategy, "average", None), PowerSGD):
        raise NotImplementedError(
            "PowerSGD needs whole matrices, and members of an island have pieces of them\n"
            "  take Compensated(codec=Stochastic(bits=4)), or Exact()"
        )


def check_ddp(wrapper: Any, group: Any, what: str) -> None:
    """TypeError where DistributedDataParallel averages over others than the island."""
    if ranks_of(wrapper.process_group) != ranks_of(group):
        raise TypeError(
            f"{what} is wrapped in DistributedDataParallel over the processes {list(ranks_of(wrapper.process_group))}, "
            f"but its island are {list(ranks_of(group))}\n"
            "  DistributedDataParallel(model, process_group=mesh.get_group()), and join(..., island=mesh)"
        )
