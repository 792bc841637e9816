"""A checkpoint of islands taken up by islands of other sizes, or by single processes: pieces put together and cut anew.

Column c's file holds the c-th piece of every tensor of the model, flat, one behind the other; so a tensor is the pieces
of all columns in their order, whoever cut it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.island import is_sharded, local, range_of
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.loop.serialization import Shard

Contents = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors of a file, and what else it says."""


@dataclass
class Recut:
    """What one node saved, for the process that is here now."""

    tensors: dict[str, Tensor]
    plain: dict[str, Any]
    kept: dict[str, Tensor]
    left: list[str]
    """What the strategy had kept that nobody knows how to cut."""


def recut(node: JoinedNode, columns: Sequence[Contents]) -> Recut:
    """From the files of all columns of a node that was saved."""
    tensors, plain = dict(columns[0][0]), columns[0][1]
    cuts = [_Cut.of(node.flat, contents) for contents in columns]
    found: dict[str, Tensor] = {}
    kept, left = {}, []
    for name in columns[0][0]:
        parts = [contents[0][name] for contents in columns]
        if name == "model":
            found[name] = _anew(node, cuts, parts)
        elif name.startswith("kept/"):
            mine = _kept(node, cuts, parts)
            if mine is None:
                left.append(name.removeprefix("kept/"))
            else:
                kept[name.removeprefix("kept/")] = mine
        elif name in plain.get("sharded", ()):
            found[name] = torch.cat([part.reshape(-1) for part in parts])
    tensors |= found
    for name, tensor in node.flat.rest.items():
        key = f"rest/{name}"
        # What wraps others is nothing that anybody shards.
        if not is_traceable_wrapper_subclass(local(tensor)):
            begin, end = range_of(tensor) if is_sharded(tensor) else (0, tensor.numel())
            tensors[key] = tensors[key].reshape(-1)[begin:end].view(local(tensor).shape)
    return Recut(tensors, plain, kept, left)


@dataclass
class _Cut:
    """Where the pieces lie in a vector: name, begin and length of each."""

    pieces: list[tuple[str, int, int]]
    numel: int
    trained: int

    @classmethod
    def of(cls, flat: FlatModel, contents: Contents) -> _Cut:
        tensors, plain = contents
        pieces = [(str(name), int(begin), int(length)) for name, begin, length in plain.get("cut", ())]
        names = [name for name, _, _ in flat.cut()]
        if [name for name, _, _ in pieces] != names:
            raise ValueError("this checkpoint is of a model with other tensors, or older than islands")
        trained, numel = len(flat.parameters), tensors["model"].numel()
        return cls(pieces, numel, pieces[trained][1] if trained < len(pieces) else numel)

    def within(self, vector: Tensor) -> Iterator[Tensor]:
        for _, begin, length in self.pieces:
            yield vector[begin : begin + length]


def _anew(node: JoinedNode, cuts: Sequence[_Cut], parts: Sequence[Tensor]) -> Tensor:
    """A vector like the model, or like what of it trains, for this process."""
    count = node.params.numel() if parts[0].numel() == cuts[0].numel else node.trained
    vector = parts[0].new_zeros(count)
    pieces = zip(*(cut.within(part) for cut, part in zip(cuts, parts, strict=True)), strict=True)
    for (_, at, length), begin, every in zip(node.flat.cut(), node.flat.begins(), pieces, strict=True):
        if at < count:
            vector[at : at + length] = torch.cat(every)[begin : begin + length]
    return vector


def _kept(node: JoinedNode, cuts: Sequence[_Cut], parts: Sequence[Tensor]) -> Tensor | None:
    for like in ("numel", "trained"):
        if all(part.dim() == 1 and part.numel() == getattr(cut, like) for cut, part in zip(cuts, parts, strict=True)):
            return _anew(node, cuts, parts)
    alike = all(part.shape == parts[0].shape and torch.equal(part, parts[0]) for part in parts)
    return parts[0] if alike else None


def with_shards(state: dict[str, Any], optimizer: Any, *, whole: bool) -> dict[str, Any]:
    """A state_dict with DTensors where parameters are such; ``whole``: what was sharded is put together, flat."""
    if "optimizers" in state:
        pairs = zip(state["optimizers"], optimizer.optimizers, strict=True)
        return {"optimizers": [with_shards(one, of, whole=whole) for one, of in pairs]}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in state.get("state", {}).items():
        for key, value in values.items():
            values[key] = _for(parameters[index], value, whole=whole)
    return state


def _for(parameter: Any, value: Any, *, whole: bool) -> Any:
    if isinstance(value, Shard):
        tensor = value.tensor
        if not is_sharded(parameter):
            return tensor.view(parameter.shape)
    elif whole and isinstance(value, Tensor) and is_sharded(parameter) and value.shape == parameter.shape != ():
        tensor = value.reshape(-1)
    else:
        return value
    if whole:
        begin, end = range_of(parameter)
        tensor = tensor[begin:end]
    kind: Any = type(parameter.detach())
    mesh, placements = parameter.device_mesh, parameter.placements
    shard = tensor.view(local(parameter).shape).to(parameter.device)
    return kind.from_local(shard, mesh, placements, shape=parameter.shape, stride=parameter.stride())
