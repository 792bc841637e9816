"""Carries rounds out: one mean, or one exchange, among some nodes, over streams of the mailbox.

Who takes part is decided elsewhere (council.py). An attempt ends well on this node when all it needs has come and all
it owes is on its way; or it is abandoned, or a connection breaks: then its streams are closed with all that they still
carry, and what this node brought is as it was, for the next attempt.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from flockstep.backends.real.mailbox.mailbox import Mailbox
from flockstep.backends.real.mailbox.memory import Buffers, Staging
from flockstep.backends.real.rounds.carrier.exchange_task import ExchangeTask
from flockstep.backends.real.rounds.carrier.mean_task import MeanTask, Task
from flockstep.backends.real.rounds.carrier.stream_table import StreamTable
from flockstep.backends.real.rounds.carrier.streams import Abandoned, Unreached
from flockstep.backends.real.rounds.carrier.undertaking import Undertaking
from flockstep.backends.real.rounds.council.words import Attempt, Key
from flockstep.message import NOTHING, Message

__all__ = ["Abandoned", "Carrier", "Unreached"]
_REMEMBERED = 64


class Carrier:
    """One node's. Each channel in a thread of its own, if several are to be under way at once."""

    def __init__(self, rank: int, mailbox: Mailbox, timeout: float) -> None:
        self._rank, self._timeout = rank, timeout
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Notified when an attempt has ended, or is abandoned."""
        self._under_way: dict[str, Undertaking] = {}
        self._abandoned: dict[str, deque[Attempt]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._closed = False
        self._buffers, self._staging = Buffers(), Staging()
        self._pinned = Buffers(lambda count: torch.empty(count, dtype=torch.uint8, pin_memory=True).numpy())
        self._table = StreamTable(mailbox, timeout, self._came, self.close)

    def mean(self, key: Key, attempt: Attempt, ranks: tuple[int, ...], v: Tensor) -> Tensor:
        """The mean of what these brought, in memory of its own; ``v`` stays as it is.

        Abandoned, Unreached, or Mismatch where they brought different things.
        """
        self._check(key, attempt)
        if len(ranks) == 1:
            return self._buffers.copy(v)
        data = v.detach().contiguous().flatten()
        buffers = self._pinned if v.device.type == "cuda" else self._buffers
        out = buffers.take(data.nbytes)
        brings = f"{tuple(v.shape)} of {v.dtype}"
        vector = self._staging.view(data.view(torch.uint8))
        task = MeanTask(brings, vector, v.dtype, out.data, self._rank, ranks)
        self._carry_out(key, attempt, ranks, task)
        if not len(out):
            return torch.empty_like(v)
        return torch.from_numpy(out).view(v.dtype).view(v.shape).to(v.device)

    def exchange(
        self, key: Key, attempt: Attempt, ranks: tuple[int, ...], messages: Sequence[Message]
    ) -> dict[int, Message]:
        """Give ``messages[j]`` to node j; what each gave to this one, and NOTHING from those who are not in."""
        self._check(key, attempt)
        mine = {rank: messages[rank] if rank < len(messages) else NOTHING for rank in ranks}
        received = dict.fromkeys(range(len(messages)), NOTHING)
        if self._rank in mine:
            received[self._rank] = mine.pop(self._rank)
        if mine:
            task = ExchangeTask(mine, self._buffers, self._staging)
            self._carry_out(key, attempt, ranks, task)
            received |= task.received()
        return received

    def abandon(self, attempt: Attempt, channel: str) -> None:
        """Whoever carries this attempt out stops at once, and what its streams still carry is dropped with them."""
        with self._lock:
            self._abandoned[channel].append(attempt)
            under_way = self._under_way.get(channel)
            if under_way is not None and under_way.attempt == attempt:
                under_way.abandon()
            self._changed.notify_all()
        self._table.drop(attempt, channel)

    def close(self) -> None:
        """Abandon all, and end all streams."""
        with self._lock:
            self._closed = True
            for under_way in self._under_way.values():
                under_way.abandon()
            self._changed.notify_all()
        self._table.close()

    def _check(self, key: Key, attempt: Attempt) -> None:
        if self._closed or attempt in self._abandoned[key.channel]:
            raise Abandoned(f"attempt {tuple(attempt)} at {key} was over before it began here")

    def _carry_out(self, key: Key, attempt: Attempt, ranks: tuple[int, ...], task: Task) -> None:
        mine = Undertaking(self._rank, self._table, key, attempt, ranks, task, self._timeout)
        well = False
        try:
            with self._lock:
                self._wait_for_the_abandoned(key, attempt)
                self._under_way[key.channel] = mine
            mine.run()
            with self._lock:
                # From here on, it is streams that nobody has that are to be closed when it is abandoned.
                self._check(key, attempt)
                well = True
                self._leave(mine, key.channel)
                mine.end(well=True)
        finally:
            if not well:
                mine.end(well=False)
                with self._lock:
                    self._leave(mine, key.channel)

    def _wait_for_the_abandoned(self, key: Key, attempt: Attempt) -> None:
        """One that is abandoned takes a moment to notice, and the next may begin before."""
        while True:
            self._check(key, attempt)
            under_way = self._under_way.get(key.channel)
            if under_way is None:
                return
            if not under_way.is_abandoned:
                raise RuntimeError(f"another attempt is under way on channel {key.channel!r}")
            self._changed.wait()

    def _leave(self, mine: Undertaking, channel: str) -> None:
        if self._under_way.get(channel) is mine:
            del self._under_way[channel]
            self._changed.notify_all()

    def _came(self, channel: str) -> None:
        with self._lock:
            under_way = self._under_way.get(channel)
        if under_way is not None:
            with suppress(OSError):
                under_way.wake()
