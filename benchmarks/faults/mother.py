"""Starts nodes by forking, so that two hundred of them cost no two hundred imports of torch.

Reads commands from standard input: ``spawn RANK``. Every node says ``ready PID LINE`` once it listens, and ``serving``
whenever its handler has given a body away to be sent.
"""

from __future__ import annotations

import os
import signal
import sys

import torch

from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.message import Message

RUN = bytes(range(16))


def say(*words: object) -> None:
    """One line, in one piece: mother and children share a pipe."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def serve(rank: int, host: str, timeout: float, count: int) -> None:
    """Be a node until killed."""
    house = open_endpoint(RUN, rank, 3, Limits(timeout), ListenOn(host, insecure=True))
    body = Message(torch.zeros(count, dtype=torch.uint8), "Raw", (count,), torch.uint8)
    short = Message(torch.zeros(8, dtype=torch.uint8), "Raw", (8,), torch.uint8)

    def long(peer: int, message: Message) -> Message:
        say("serving")
        return body

    house.box.answer("long", long)
    house.box.answer("short", lambda peer, message: short)
    say("ready", os.getpid(), house.box.members.me)
    signal.pause()


def main() -> None:
    """Fork on command; when the commands end, so do all."""
    host, timeout, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    # Warnings of the open address would come two hundred times.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    torch.set_num_threads(1)
    for line in sys.stdin:
        rank = int(line.split()[1])
        if os.fork() == 0:
            serve(rank, host, timeout, count)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
