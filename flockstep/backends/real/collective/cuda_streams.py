"""A collective's place on a GPU: a stream of its own, so that training's kernels and it do not wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Streams = dict[torch.device, "torch.cuda.Stream"]


class StreamHandoff:
    """Now, on the GPU's clock: what was asked of it so far makes the data, and only that is waited for.

    Where the data is in this machine's memory, it is there already, and nothing is done.
    """

    def __init__(self, data: Sequence[Tensor]) -> None:
        self._data = [each for each in data if each.is_cuda]
        self._home = torch.cuda.current_stream(self._data[0].device) if self._data else None
        self._ready: Any = None if self._home is None else self._home.record_event()

    @contextmanager
    def aside(self, streams: Streams) -> Iterator[None]:
        """``with moment.aside(streams):`` work on the data in another thread; in the end it is done, not only begun.

        A thread has one set of streams, which it makes as it needs them.
        """
        if self._home is None:
            yield
            return
        device = self._home.device
        stream = streams.get(device) or streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        stream.wait_event(self._ready)
        with torch.cuda.stream(stream):
            yield
        for each in self._data:
            each.record_stream(stream)
        stream.synchronize()

    def home(self, made: Tensor) -> Tensor:
        """What was made aside will be used where the data came from: its memory is not given away before that."""
        if self._home is not None and made.is_cuda:
            made.record_stream(self._home)
        return made
