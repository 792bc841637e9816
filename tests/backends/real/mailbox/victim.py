"""Two houses in a process of their own, one plain and one with keys; a line in, a line of JSON out.

python victim.py KEYS
"""

import gc
import json
import sys
import threading
from pathlib import Path

import torch
from hostile import RUN, resident_bytes

from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.security.keys import Keys
from flockstep.message import Message

SECONDS = 60.0


def doubled(sender, asked):
    return Message(asked.data * 2, asked.codec, asked.shape, asked.dtype)


def measured():
    gc.collect()
    (threads,) = [
        line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Threads")
    ]
    return {
        "threads": int(threads),
        "connections": sum(thread.name == "mailbox connection" for thread in threading.enumerate()),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "resident": resident_bytes(),
        "errors": errors,
    }


errors = []
# What ends a thread is a crash, even if the process lives on.
threading.excepthook = lambda told: errors.append(repr(told.exc_value))

if __name__ == "__main__":
    torch.set_num_threads(1)
    keys = Keys.find(sys.argv[1], 1)
    opened = [open_endpoint(RUN, 1, 3, Limits(SECONDS), site) for site in (ListenOn(), ListenOn(keys=keys))]
    for house in opened:
        house.box.answer("topic", doubled)
    print(json.dumps([str(house.box.members.me) for house in opened]), flush=True)
    for _ in sys.stdin:
        print(json.dumps(measured()), flush=True)
    for house in opened:
        house.close()
