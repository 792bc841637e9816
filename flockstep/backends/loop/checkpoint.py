"""Checkpoints of a joined loop: one safetensors file per node and step, written whole or not at all. Never pickle.

    folder/step-00000100/node-0000.safetensors, node-0001.safetensors, ...
    folder/step-00000100/node-0000.column-00.safetensors, ...      one for each process of an island

A checkpoint is complete when every node's file is there; an incomplete one is never taken. Resuming with as many nodes
as saved it gives the run that would have gone on, to the bit on a CPU. With fewer or more, every node starts from the
average of all saved models, with the optimizer of saved node ``rank % saved size``; what strategies had kept does not
carry over. Islands of another size put the pieces together, and cut them anew (resharding.py).
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from flockstep.backends.loop import resharding, serialization
from flockstep.backends.loop.island import is_sharded, local
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.loop.serialization import plain_tensors

_KEPT_STEPS = 2


@dataclass(frozen=True)
class Moment:
    """What would be lost between two steps: buffers and random states move on with the next forward pass."""

    step: int
    buffers: Tensor
    tensors: dict[str, Tensor]
    """Random states, and whatever of the model is neither trained nor averaged."""
    random: dict[str, Any]

    @classmethod
    def of(cls, node: JoinedNode) -> Moment:
        """This moment."""
        node.flat.pull()
        tensors = {f"rest/{name}": tensor.detach().cpu().clone() for name, tensor in _rest(node)}
        # As they are: what they have changed by since the door, in the vector, is rounded.
        tensors |= {f"buffer/{i}": b.now.detach().cpu().clone() for i, b in enumerate(node.flat.statistics.buffers)}
        # In the middle of a step (a strategy waits for a second gradient), the step counts as not begun.
        step = node.step_count - (0 if node.driver.at_boundary else 1)
        return cls(step, node.flat.buffers(node.params).clone(), tensors, _random_state(node, tensors))


def save(node: JoinedNode, folder: Path, moment: Moment | None = None) -> Path:
    """Write this node's part, whole or not at all; the two newest complete checkpoints are kept.

    With a ``moment``, what was then: weights and optimizer are as they were until the next step.
    """
    moment = moment or Moment.of(node)
    tensors, plain = contents(node, moment)
    target = folder / f"step-{moment.step:08d}"
    target.mkdir(parents=True, exist_ok=True)
    _write(target / _name(node.rank, node.column, node.columns), tensors, plain)
    if node.outlives_deaths:
        # Nodes stand at different steps, and nobody waits for a checkpoint to be complete: each keeps its own.
        for file in _own(node, folder)[:-_KEPT_STEPS]:
            file.unlink()
            with suppress(OSError):
                file.parent.rmdir()
    else:
        for step in complete(folder)[:-_KEPT_STEPS]:
            shutil.rmtree(folder / f"step-{step:08d}", ignore_errors=True)
    return target


def contents(node: JoinedNode, moment: Moment, *, all_of_it: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a checkpoint of that moment holds; all of it, or without what is this node's own."""
    model = node.params.detach().clone()
    node.check_finite(model, "the model")
    node.flat.buffers(model).copy_(moment.buffers)
    tensors = {"model": model.cpu(), **moment.tensors}
    tensors |= {f"base/{i}": base.detach().cpu().clone() for i, base in enumerate(node.flat.statistics.bases)}
    kept = {name: tensor for name, tensor in node.kept.items() if all_of_it or name not in node.own}
    tensors |= {f"kept/{name}": tensor.detach().cpu().clone() for name, tensor in kept.items()}
    plain: dict[str, Any] = {"step": moment.step, "size": node.size, "rank": node.rank}
    if node.island is not None:
        plain |= {"columns": node.columns, "column": node.column}
    plain["cut"] = node.flat.cut()
    if all_of_it:
        plain["random"] = moment.random
    plain["spent"] = list(node.ledger.entries().items()) if node.ledger else []
    plain["optimizer"] = serialization.taken_apart(node.optimizer.state_dict(), "optimizer", tensors)
    plain["stateful"] = [
        serialization.taken_apart(thing.state_dict(), f"stateful/{i}", tensors) for i, thing in enumerate(node.stateful)
    ]
    sharded = [f"rest/{name}" for name, tensor in node.flat.rest.items() if is_sharded(tensor)]
    plain["sharded"] = [*sharded, *serialization.shards_in(plain["optimizer"])]
    return tensors, plain


async def load(node: JoinedNode, folder: Path) -> bool:
    """Take up the newest complete checkpoint, the same on every node; False if there is none."""
    steps = complete(folder)
    newest = torch.tensor([float(max(steps, default=-1))], dtype=torch.float64)
    agreed = float(await node.mean(newest, "resume"))
    if node.total((newest != agreed).double()):
        raise FileNotFoundError(
            f"nodes see different checkpoints under {folder}: this one's newest is {int(newest)}\n"
            "  resume from a folder that all nodes share, or copy it to every node"
        )
    if not steps:
        if any(folder.glob("step-*/node-*")):
            warnings.warn(f"no checkpoint under {folder} is complete: training starts anew", stacklevel=2)
        return False
    saved = folder / f"step-{max(steps):08d}"
    size, columns = _sizes(saved)
    if columns == node.columns and size == node.size:
        restore(node, *_read(saved / _name(node.rank, node.column, columns)), exactly=True)
        return True
    mine = _of_node(node, saved, node.rank % size, columns)
    restore(node, mine.tensors, mine.plain, exactly=False, whole=columns != node.columns)
    if size == node.size:
        node.kept_before = mine.kept
        if mine.left:
            warnings.warn(
                f"resumed islands of {columns} on islands of {node.columns}: what the strategy had kept as "
                f"{', '.join(mine.left)} is left behind",
                stacklevel=2,
            )
        return True
    models = [_of_node(node, saved, rank, columns).tensors["model"] for rank in range(size)]
    node.params.copy_(torch.stack(models).mean(0))
    node.flat.settle()
    warnings.warn(
        f"resumed {size} nodes' checkpoint on {node.size}: all start from the average model, "
        "and what the strategy had kept is left behind",
        stacklevel=2,
    )
    return True


def _of_node(node: JoinedNode, saved: Path, rank: int, columns: int) -> resharding.Recut:
    """What a node saved, as this process needs it."""
    if columns == node.columns:
        return resharding.Recut(*_read(saved / _name(rank, node.column, columns)), {}, [])
    return resharding.recut(node, [_read(saved / _name(rank, column, columns)) for column in range(columns)])


def _name(rank: int, column: int = 0, columns: int = 1) -> str:
    return f"node-{rank:04d}{f'.column-{column:02d}' if columns > 1 else ''}.safetensors"


def _sizes(saved: Path) -> tuple[int, int]:
    """How many nodes of how many processes saved a checkpoint."""
    plain = _read_plain(min(saved.glob("node-0000*.safetensors")))
    return int(plain["size"]), int(plain.get("columns", 1))


def load_own(node: JoinedNode, folder: Path) -> bool:
    """Take up this node's own newest file, whatever the others do: for runs whose nodes step on their own."""
    files = _own(node, folder)
    if files:
        restore(node, *_read(files[-1]), exactly=True)
    return bool(files)


def newest_own(node: JoinedNode, folder: Path) -> int | None:
    """The step at which ``load_own`` would go on; None where there is nothing to go on from."""
    files = _own(node, folder)
    return int(files[-1].parent.name.removeprefix("step-")) if files else None


def _own(node: JoinedNode, folder: Path) -> list[Path]:
    return sorted(folder.glob(f"step-*/node-{node.rank:04d}.safetensors"))


def complete(folder: Path) -> list[int]:
    """The steps whose checkpoints are whole."""
    found = []
    for path in folder.glob("step-*"):
        match = re.fullmatch(r"step-(\d+)", path.name)
        first = min(path.glob("node-0000*.safetensors"), default=None)
        if match and first is not None:
            try:
                size, columns = _sizes(path)
            except (OSError, RuntimeError, ValueError):
                if first.exists():
                    raise
                # Another node has just forgotten this one.
                continue
            if all((path / _name(rank, c, columns)).exists() for rank in range(size) for c in range(columns)):
                found.append(int(match[1]))
    return sorted(found)


def restore(
    node: JoinedNode, tensors: dict[str, Tensor], plain: dict[str, Any], *, exactly: bool, whole: bool = False
) -> None:
    """Take up what ``contents`` gave; of another number of nodes not exactly, and without what strategies kept.

    ``whole``: what of the optimizer was sharded is put together, and to be cut anew.
    """
    node.params.copy_(tensors["model"])
    for name, tensor in _rest(node):
        tensor.data.copy_(tensors[f"rest/{name}"])
    for i, base in enumerate(node.flat.statistics.bases):
        base.copy_(tensors[f"base/{i}"])
    node.flat.settle()
    if exactly:
        for i, buffer in enumerate(node.flat.statistics.buffers):
            buffer.now.data.copy_(tensors[f"buffer/{i}"])
        node.flat.statistics.remember()
    state = serialization.put_together(plain["optimizer"], tensors)
    node.optimizer.load_state_dict(resharding.with_shards(state, node.optimizer, whole=whole))
    for i, thing in enumerate(node.stateful):
        thing.load_state_dict(serialization.put_together(plain["stateful"][i], tensors))
    node.step_count = node.tally.steps = int(plain["step"])
    if node.ledger is not None:
        node.ledger.resume(dict(plain["spent"]))
    if exactly:
        node.kept_before = {
            name.removeprefix("kept/"): tensor for name, tensor in tensors.items() if name.startswith("kept/")
        }
        if "random" in plain:
            _restore_random(node, plain["random"], tensors)


def _rest(node: JoinedNode) -> list[tuple[str, Tensor]]:
    """What of the model is neither trained nor averaged, as plain numbers."""
    parts = ((name, plain_tensors(local(tensor))) for name, tensor in node.flat.rest.items())
    return [(f"{name}/{i}" if i else name, plain) for name, plains in parts for i, plain in enumerate(plains)]


def _write(path: Path, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    # Under another name first: a file that bears the right name is whole, whatever happened.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-", suffix=path.name)
    os.close(handle)
    temporary = Path(name)
    try:
        save_file(tensors, temporary, metadata={"flockstep": json.dumps(plain)})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["flockstep"])  # noqa: SIM118


def _read_plain(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        plain: dict[str, Any] = json.loads(file.metadata()["flockstep"])
        return plain


def _random_state(node: JoinedNode, tensors: dict[str, Tensor]) -> dict[str, Any]:
    tensors["random/torch"] = torch.get_rng_state()
    if node.params.is_cuda:
        tensors["random/cuda"] = torch.cuda.get_rng_state(node.params.device)
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors["random/numpy"] = torch.from_numpy(np.asarray(keys).astype(np.int64))
    return {
        "codec": node.rng.bit_generator.state,
        "python": [version, list(numbers), gauss],
        "numpy": [name, int(position), int(has_gauss), float(cached)],
    }


def _restore_random(node: JoinedNode, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    torch.set_rng_state(tensors["random/torch"])
    if node.params.is_cuda and "random/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random/cuda"], node.params.device)
    node.rng.bit_generator.state = plain["codec"]
    version, numbers, gauss = plain["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, position, has_gauss, cached = plain["numpy"]
    np.random.set_state((name, tensors["random/numpy"].numpy().astype(np.uint32), position, has_gauss, cached))
