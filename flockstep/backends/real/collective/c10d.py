"""The few names of torch.distributed that this backend stands on, in one place. torch ships no types for them."""

from __future__ import annotations

from typing import Any

import torch.distributed as _dist

FileStore: Any = getattr(_dist, "FileStore")  # noqa: B009
HashStore: Any = getattr(_dist, "HashStore")  # noqa: B009
PrefixStore: Any = getattr(_dist, "PrefixStore")  # noqa: B009
rendezvous: Any = getattr(_dist, "rendezvous")  # noqa: B009
Store = Any


def default_store() -> Store:
    """That of a default group which is there already: torch has no public name for it."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def gloo(store: Store, rank: int, size: int, timeout: Any) -> Any:
    """A gloo process group found by its store, not by the order groups are made in."""
    return _dist.ProcessGroupGloo(store, rank, size, timeout)


def nccl(store: Store, rank: int, size: int, timeout: Any) -> Any:
    """The same with NCCL."""
    options = _dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return _dist.ProcessGroupNCCL(store, rank, size, options)
