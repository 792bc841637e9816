"""Some nodes in threads of one process, with real mailboxes between them, and moments in which something happens."""

import threading
from concurrent.futures import Future
from pathlib import Path

import torch

from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.rounds.carrier import mean_task, streams, undertaking
from flockstep.backends.real.rounds.carrier.carrier import Carrier
from flockstep.backends.real.rounds.council.words import Attempt, Key
from flockstep.backends.real.security.keys import Keys
from flockstep.node import mean_of

RUN = bytes(range(100, 116))
LONG = 1000.0
"""A timeout nobody wants to wait for: what needs it to end hangs."""
SECONDS = 60


class Crew:
    """Their endpoints and carriers, by rank."""

    def __init__(self, size, keys=None, seconds=LONG):
        sites = [ListenOn(keys=Keys.find(keys, rank) if keys else None) for rank in range(size)]
        self.ends = [open_endpoint(RUN, rank, size, Limits(seconds), site) for rank, site in enumerate(sites)]
        for end in self.ends:
            for other in self.ends:
                if other is not end:
                    end.box.members.learn(str(other.box.members.me))
        self.carriers = [Carrier(rank, end.box, seconds) for rank, end in enumerate(self.ends)]

    def mean(self, vectors, *, number=1, channel="model", ranks=None):
        """What each got, or the exception that it raised."""
        ranks = tuple(range(len(self.ends))) if ranks is None else ranks
        key, attempt = Key(channel, number), Attempt(1, number)
        calls = [aside(self.carriers[r].mean, key, attempt, ranks, v) for r, v in zip(ranks, vectors, strict=True)]
        return [outcome(call) for call in calls]

    def abandon(self, number=1, channel="model"):
        for carrier in self.carriers:
            carrier.abandon(Attempt(1, number), channel)

    def close(self):
        for end in self.ends:
            end.close()


def aside(function, *arguments):
    """In a thread of its own."""
    future = Future()

    def work():
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def outcome(future):
    """The result, or the exception."""
    return future.exception(SECONDS) or future.result()


def vectors(count, size, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator, dtype=torch.float64).to(dtype) for _ in range(count)]


def expected(given):
    return mean_of([v.clone() for v in given], "model", 0)


def in_small_pieces(monkeypatch, nbytes=1000):
    """So that short vectors go through all that long ones do."""
    for module in (streams, mean_task):
        monkeypatch.setattr(module, "PIECE_BYTES", nbytes)
    monkeypatch.setattr(mean_task, "_MOST_WHOLE", 0)


def at_frame(monkeypatch, rank, moment, act):
    """Call ``act`` once, when this node is about to write or to take its so-manieth frame; True in the list if so."""
    reached, count = [], [0]

    def watched(name):
        original = getattr(undertaking.Undertaking, name)

        def hook(self, *arguments):
            if self._rank == rank and not reached:
                count[0] += 1
                if count[0] > moment:
                    reached.append(True)
                    act()
            return original(self, *arguments)

        monkeypatch.setattr(undertaking.Undertaking, name, hook)

    watched("_begin_frame")
    watched("take")
    return reached


def open_files():
    return len([*Path("/proc/self/fd").iterdir()])
