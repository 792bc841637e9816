"""State as plain numbers: tensors of any kind as tensors a file can hold, and a state_dict as JSON beside them.

Without pickle, in files and on the wire.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from flockstep.backends.loop.island import is_sharded, local


@dataclass(frozen=True)
class Shard:
    """A process's part of a tensor, of which somebody who knows the whole can make a DTensor again."""

    tensor: Tensor


def taken_apart(thing: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """``thing`` as JSON, its tensors put into ``tensors`` by name; TypeError where there is no such form of it."""
    if isinstance(thing, Tensor):
        return _tensor(thing, name, tensors)
    if isinstance(thing, dict):
        return {
            "counts" if isinstance(thing, Counter) else "dict": [
                [key, taken_apart(value, f"{name}/{key}", tensors)] for key, value in thing.items()
            ]
        }
    if isinstance(thing, list | tuple):
        items = [taken_apart(value, f"{name}/{i}", tensors) for i, value in enumerate(thing)]
        return {"tuple" if isinstance(thing, tuple) else "list": items}
    if isinstance(thing, torch.dtype):
        return {"dtype": str(thing).removeprefix("torch.")}
    if thing is None or isinstance(thing, bool | int | float | str):
        return {"plain": thing}
    raise TypeError(f"a checkpoint cannot hold {name}: {type(thing).__name__} is neither a tensor nor a plain value")


def shards_in(form: Any) -> list[str]:
    """Under which names a form that was taken apart has shards."""
    if isinstance(form, dict) and set(form) == {"shard"}:
        return [form["shard"]]
    inside = form.values() if isinstance(form, dict) else form if isinstance(form, list) else ()
    return [name for part in inside for name in shards_in(part)]


def put_together(form: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """What ``taken_apart`` took apart."""
    (kind, value), *_ = form.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "shard":
        return Shard(tensors[value])
    if kind == "wrapped":
        return _rewrapped(value, tensors)
    if kind in ("dict", "counts"):
        items = {key: put_together(item, tensors) for key, item in value}
        return Counter(items) if kind == "counts" else items
    if kind in ("list", "tuple"):
        parts = [put_together(item, tensors) for item in value]
        return tuple(parts) if kind == "tuple" else parts
    return getattr(torch, value) if kind == "dtype" else value


def _tensor(tensor: Tensor, name: str, tensors: dict[str, Tensor]) -> Any:
    inside: Any = tensor.detach()
    if is_sharded(inside):
        tensors[name] = local(inside).cpu().clone().contiguous()
        return {"shard": name}
    # A DTensor that every process has whole is its own numbers.
    inside = local(inside)
    if not is_traceable_wrapper_subclass(inside):
        tensors[name] = inside.cpu().clone().contiguous()
        return {"tensor": name}
    # One that wraps others, as the state of an 8-bit optimizer does: those, and how it is made of them.
    names, context = inside.__tensor_flatten__()
    kind = type(inside)
    return {
        "wrapped": {
            "module": kind.__module__,
            "class": kind.__qualname__,
            "inner": [[inner, taken_apart(getattr(inside, inner), f"{name}/{inner}", tensors)] for inner in names],
            "context": taken_apart(context, f"{name}/context", tensors),
            "shape": list(inside.shape),
            "stride": list(inside.stride()),
        }
    }


def _rewrapped(form: dict[str, Any], tensors: dict[str, Tensor]) -> Tensor:
    # Nothing is imported because a file says so: whoever made the optimizer has done that.
    kind = getattr(sys.modules.get(form["module"]), form["class"], None)
    if not (isinstance(kind, type) and issubclass(kind, Tensor) and hasattr(kind, "__tensor_unflatten__")):
        raise TypeError(
            f"this checkpoint holds a {form['module']}.{form['class']}, which this program has not imported"
        )
    inner = {name: put_together(part, tensors) for name, part in form["inner"]}
    made: Any = kind
    whole: Tensor = made.__tensor_unflatten__(
        inner, put_together(form["context"], tensors), torch.Size(form["shape"]), tuple(form["stride"])
    )
    return whole


_OFTEN = 64


def now_and_then(count: int) -> bool:
    """Whether it is time for a look that costs something: at 1, 2, 4, 8, ... 64, and then every so often."""
    return count & (count - 1) == 0 or count % _OFTEN == 0


def plain_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensor itself; of one that wraps others (quantised weights, for one), those, in a fixed order."""
    inside: Any = tensor.data
    if not is_traceable_wrapper_subclass(inside):
        return [tensor]
    names, _ = inside.__tensor_flatten__()
    return [plain for name in names for plain in plain_tensors(getattr(inside, name))]


def as_bytes(tensor: Tensor) -> Tensor:
    """A tensor's numbers, bit by bit."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def take_bytes(tensor: Tensor, data: Tensor) -> None:
    """Write numbers that ``as_bytes`` read, here or elsewhere, into a tensor like theirs."""
    write(tensor, data.to(tensor.device).view(tensor.dtype).view(tensor.shape))


def write(tensor: Tensor, value: Tensor) -> None:
    """Let a tensor hold a value, which most hold already: constants are not written to, however they lie in memory."""
    if torch.equal(tensor.detach(), value) or torch.equal(as_bytes(tensor), as_bytes(value)):
        return
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise ValueError(
            "a buffer that differs between nodes holds one number in several places (expand)\n"
            "  give it memory of its own: clone()"
        )
    tensor.data.copy_(value)
