"""Nodes as processes: collectives by torch.distributed (gloo; NCCL where each node has a GPU), messages by mailbox.

Every channel has a process group, a thread and a CUDA stream of its own, found by name, so that background collectives
neither wait for nor mix with others, and nodes may open channels in any order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from flockstep.backends.real.collective import c10d
from flockstep.backends.real.collective.cuda_streams import StreamHandoff, Streams
from flockstep.backends.real.collective.rendezvous import Rendezvous
from flockstep.backends.real.mailbox.mail_fabric import MailFabric
from flockstep.errors import Deadlock, FlockstepError, LostPeer, nodes_named, stuck, unlike
from flockstep.message import HEADER_BYTES, Message
from flockstep.node import mean_of

# How often a node that waits looks whether what it waits for can still come.
_GLANCE = 0.2


class _Channel:
    """A process group, and the thread that runs its collectives in the order they were begun."""

    def __init__(self, name: str, connect: Callable[[], Any]) -> None:
        self._name, self._connect = name, connect
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[Any, bool], Any], StreamHandoff] | None] = SimpleQueue()
        self._begun = self._done = 0
        self._thread = threading.Thread(target=self._run, name=f"channel {name}", daemon=True)
        self._thread.start()

    def begin(self, job: Callable[[Any, bool], Any], moment: StreamHandoff) -> Future[Any]:
        """Queue a collective: ``job(group, first)``, once its data is there."""
        future: Future[Any] = Future()
        self._begun += 1
        self._jobs.put((future, job, moment))
        return future

    def close(self) -> None:
        """End the thread, and the group with it: a script may join many times.

        A thread in a collective that others have left stays as it is. Waiting for it would take as long as its
        timeout, and a group that ends while the interpreter does takes the process down.
        """
        if self._done == self._begun:
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        group: Any = None
        streams: Streams = {}
        while True:
            asked = self._jobs.get()
            if asked is None:
                return
            future, job, moment = asked
            result: Any = None
            failed: FlockstepError | None = None
            try:
                first = group is None
                group = self._connect() if first else group
                with moment.aside(streams):
                    result = job(group, first)
            except FlockstepError as error:
                failed = error
            except Exception as error:
                reason = str(error).splitlines()[0]
                failed = LostPeer(f"a peer was lost on channel {self._name!r}: {reason}")
            self._done += 1
            _settle(future, result, failed)


class ProcessFabric(MailFabric):
    """This process's way to the others."""

    def __init__(self, store: c10d.Store, rank: int, size: int, timeout: float, section: str = "") -> None:
        self.rendezvous = Rendezvous(store, size, section)
        super().__init__(rank, size, timeout, lambda: self.rendezvous.open_endpoint(rank, timeout))
        self._store = c10d.PrefixStore(section, store)
        self._channels: dict[str, _Channel] = {}
        self._waiting: dict[Future[Any], None] = {}

    def mean(self, v: Tensor, channel: str, round: int) -> Future[Tensor]:
        def job(group: Any, first: bool) -> Tensor:
            if first:
                self._compare(group, v, channel, round)
            if v.element_size() < 4:
                # Gloo's and NCCL's sums of halves are themselves halves, at every hop of their rings.
                device = v.device if self._nccl(v.device) else torch.device("cpu")
                return v.copy_(_mean_of_halves(group, v.to(device), self._rank, self._size).view(v.shape))
            group.allreduce([v]).wait()
            return v.div_(self._size)

        return self._channel(channel, v.device).begin(job, StreamHandoff([v]))

    def exchange(self, messages: Sequence[Message], channel: str, round: int) -> Future[list[Message]]:
        # Gloo exchanges in host memory only.
        home = messages[0].data.device
        device = home if self._nccl(home) else torch.device("cpu")
        moment = StreamHandoff([message.data for message in messages])

        def job(group: Any, first: bool) -> list[Message]:
            received = _exchange(group, messages, device)
            return [Message(moment.home(m.data.to(home)), m.codec, m.shape, m.dtype) for m in received]

        return self._channel(channel, device).begin(job, moment)

    def wait(self, future: Future[Any], where: str, channel: str, round: int) -> Any:
        deadline = time.monotonic() + self.timeout
        self._waiting[future] = None
        try:
            while True:
                if self._error is not None and not future.done():
                    raise self._error
                try:
                    return future.result(_GLANCE)
                except TimeoutError:
                    if dead := self.rendezvous.dead():
                        raise self._lost(dead, where) from None
                    if gone := self.rendezvous.gone_before(channel, round):
                        raise stuck([self._rank], where, gone, channel=channel, round=round) from None
                    if time.monotonic() > deadline:
                        message = f"node {self._rank} waited {self.timeout:g} s in {where}"
                        raise Deadlock(message, channel=channel, round=round) from None
        finally:
            self._waiting.pop(future, None)

    def peers(self) -> tuple[int, ...]:
        dead = self.rendezvous.dead()
        return tuple(rank for rank in super().peers() if rank not in dead)

    def fail(self, error: FlockstepError) -> None:
        self._error = error
        for future in list(self._waiting):
            _settle(future, error=error)

    def leave(self, rounds: dict[str, int]) -> None:
        self.rendezvous.leave(self._rank, rounds)
        deadline = time.monotonic() + self.timeout
        while self.rendezvous.left() < self._size:
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                raise Deadlock(f"node {self._rank} has returned and waited {self.timeout:g} s for the others to")
            time.sleep(0.02)

    def close(self) -> None:
        """The last thing to do: whoever holds the store must outlive the others' use of it."""
        self._store.add("closed", 1)
        deadline = time.monotonic() + self.timeout
        while self._rank == 0 and self._store.add("closed", 0) < self._size and time.monotonic() < deadline:
            time.sleep(0.02)
        for channel in self._channels.values():
            channel.close()
        super().close()

    def _lost(self, dead: list[int], where: str) -> LostPeer:
        return LostPeer(f"node {self._rank} was in {where} when it lost {nodes_named(dead)}", rank=self._rank)

    def _channel(self, name: str, device: torch.device) -> _Channel:
        if name not in self._channels:
            self._channels[name] = _Channel(name, lambda: self._group(name, device))
        return self._channels[name]

    def _nccl(self, device: torch.device) -> bool:
        return device.type == "cuda" and torch.cuda.device_count() >= self._size

    def _group(self, name: str, device: torch.device) -> Any:
        store, timeout = c10d.PrefixStore(f"channel/{name}", self._store.clone()), timedelta(seconds=self.timeout)
        if self._nccl(device):
            torch.cuda.set_device(device)
            return c10d.nccl(store, self._rank, self._size, timeout)
        return c10d.gloo(store, self._rank, self._size, timeout)

    def _compare(self, group: Any, v: Tensor, channel: str, round: int) -> None:
        # Sizes as numbers, since the vectors themselves cannot be sent before they are known to be alike.
        mine = torch.tensor([v.numel(), v.element_size(), v.is_floating_point()], device=v.device)
        everyones = [torch.empty_like(mine) for _ in range(self._size)]
        group.allgather([everyones], [mine]).wait()
        shapes = [
            f"({count},) of {width}-byte {'floats' if floating else 'integers'}"
            for count, width, floating in map(Tensor.tolist, everyones)
        ]
        for rank, other in enumerate(shapes):
            if other != shapes[0]:
                raise unlike(0, shapes[0], rank, other, channel=channel, round=round)


def _mean_of_halves(group: Any, v: Tensor, rank: int, size: int) -> Tensor:
    """The mean, flat: each node sums one chunk of all vectors as floats, rounds it once, and gives it to everybody.

    As many bytes as a ring's. The sums are those of ``mean_of``, and so is every bit of the mean.
    """
    flat = v.reshape(-1)
    sizes = [chunk.nbytes for chunk in flat.tensor_split(size)]
    own = sizes[rank]
    gathered = flat.new_empty(size * own // flat.element_size()).view(torch.uint8)
    group.alltoall_base(gathered, flat.view(torch.uint8), [own] * size, sizes).wait()
    mean = mean_of(list(gathered.view(flat.dtype).view(size, -1)), "", 0) if own else flat[:0]
    means = torch.empty_like(flat).view(torch.uint8)
    group.alltoall_base(means, mean.view(torch.uint8).repeat(size), sizes, [own] * size).wait()
    return means.view(flat.dtype)


def _exchange(group: Any, messages: Sequence[Message], device: torch.device) -> list[Message]:
    packed = [_pack(message, device) for message in messages]
    outgoing = [tensor.numel() for tensor in packed]
    counts = torch.empty(len(messages), dtype=torch.int64, device=device)
    one_each = [1] * len(messages)
    group.alltoall_base(counts, torch.tensor(outgoing, device=device), one_each, one_each).wait()
    incoming: list[int] = counts.tolist()
    received = torch.empty(sum(incoming), dtype=torch.uint8, device=device)
    group.alltoall_base(received, torch.cat(packed), incoming, outgoing).wait()
    return [_unpack(part) for part in torch.split(received, incoming)]


def _pack(message: Message, device: torch.device) -> Tensor:
    header = torch.frombuffer(bytearray(message.header()), dtype=torch.uint8).to(device)
    return torch.cat([header, message.data.to(device)])


def _unpack(packed: Tensor) -> Message:
    codec, shape, dtype, length = Message.read_header(bytes(packed[:HEADER_BYTES].tolist()))
    if length != packed.numel() - HEADER_BYTES:
        raise ValueError(f"a message says {length} bytes and has {packed.numel() - HEADER_BYTES}")
    return Message(packed[HEADER_BYTES:].clone(), codec, shape, dtype)


def _settle(future: Future[Any], result: Any = None, error: Exception | None = None) -> None:
    # Two threads may end one future: the collective's own, and whoever declares this node failed.
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
