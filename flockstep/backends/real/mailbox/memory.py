"""Where bodies come to lie: buffers that are used again, and pinned memory for what comes from a GPU."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Shorter ones cost less to make than to look for.
_SHORT = 64 * 1024
_MOST_KEPT = 8
# The deque, the loop's variable and the question itself hold one each.
_OURS = 3


class Buffers:
    """Memory for what arrives, used again once nobody holds what arrived in it before.

    Fresh memory must be cleared and mapped page by page, which takes as long as receiving into it.
    """

    def __init__(self, make: Callable[[int], NDArray[np.uint8]] = lambda count: np.empty(count, np.uint8)) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._kept: deque[NDArray[np.uint8]] = deque(maxlen=_MOST_KEPT)

    def take(self, count: int) -> NDArray[np.uint8]:
        """Memory of exactly this length, yours as long as you hold it, or any tensor made of it.

        Not cleared, so that the system gives pages only as data comes: a length is only what somebody claims.
        """
        if count < _SHORT:
            return self._make(count)
        with self._lock:
            for buffer in self._kept:
                if len(buffer) == count and sys.getrefcount(buffer) <= _OURS:
                    return buffer
            fresh = self._make(count)
            self._kept.append(fresh)
            return fresh

    def copy(self, v: Tensor) -> Tensor:
        """A copy of a vector, yours as long as you hold it; on a GPU, where torch keeps memory for this, by torch."""
        if v.device.type != "cpu" or v.nbytes < _SHORT:
            return v.detach().clone()
        return torch.from_numpy(self.take(v.nbytes)).view(v.dtype).view(v.shape).copy_(v.detach())


class Staging:
    """Brings data to where a socket can read it: from a GPU through pinned memory, on a stream of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pinned = Buffers(lambda count: torch.empty(count, dtype=torch.uint8, pin_memory=True).numpy())

    def view(self, data: Tensor) -> memoryview:
        """The bytes of a flat uint8 tensor, copied only if it is not in this machine's memory."""
        if not data.numel():
            return memoryview(b"")
        if data.device.type == "cuda":
            return self._bring(data)
        return data.cpu().contiguous().numpy().data

    def _bring(self, data: Tensor) -> memoryview:
        pinned = self._pinned.take(data.numel())
        with self._lock:
            if data.device not in self._streams:
                self._streams[data.device] = torch.cuda.Stream(data.device)  # type: ignore[no-untyped-call]
            stream = self._streams[data.device]
        # What made the data must be done; what comes after it need not wait for this copy.
        stream.wait_stream(torch.cuda.current_stream(data.device))
        with torch.cuda.stream(stream):
            torch.from_numpy(pinned).copy_(data, non_blocking=True)
        stream.synchronize()
        return pinned.data
