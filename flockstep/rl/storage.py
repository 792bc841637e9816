"""A trained policy as one file: tensors as safetensors, everything else as JSON in its head. Never pickle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

FORMAT = 1
_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Saved:
    """What a file holds."""

    about: dict[str, Any]
    policy: dict[str, Tensor]
    engine: dict[str, Tensor]


def place(path: str | Path) -> Path:
    """A path with its suffix: ``best`` is ``best.safetensors``."""
    path = Path(path)
    return path if path.suffix else path.with_suffix(_SUFFIX)


def write(
    path: str | Path, about: Mapping[str, Any], policy: Mapping[str, Tensor], engine: Mapping[str, Tensor]
) -> Path:
    """Whole or not at all: under another name first."""
    tensors = {f"policy/{name}": t.detach().cpu().contiguous().clone() for name, t in policy.items()}
    tensors |= {f"engine/{name}": t.detach().cpu().contiguous() for name, t in engine.items()}
    content = save(tensors, metadata={"hsa2c": json.dumps({"format": FORMAT, **about}, allow_nan=False)})
    path = place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def read(path: str | Path) -> Saved:
    """What ``write`` wrote."""
    path = place(path)
    if not path.exists():
        raise FileNotFoundError(2, "No such file", str(path))
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("hsa2c", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a file that HSA2C.save wrote: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(f"{path} is not a file that HSA2C.save wrote, or of another version of it")
    parts = {
        part: {n.removeprefix(f"{part}/"): t for n, t in tensors.items() if n.startswith(f"{part}/")}
        for part in ("policy", "engine")
    }
    return Saved(about, **parts)
