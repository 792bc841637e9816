"""Journals written by hand, and readers with a clock and a register of deaths of their own."""

import json

from flockstep.live.alive import here
from flockstep.live.reader import Reader
from flockstep.live.state import state

BEGAN = 1_000_000.0


def who(rank, size, *, incarnation=0, host=None, began=BEGAN):
    told = {"format": 1, "rank": rank, "size": size, "incarnation": incarnation, "strategy": "Swarm(period=4)"}
    return {"who": told | {"host": host or here(), "pid": 100 + rank, "born": 5, "began": began}}


def write(folder, rank, *told, incarnation=0, end="\n"):
    path = folder / f"node-{rank}-{incarnation}.jsonl"
    with path.open("a") as file:
        file.write("\n".join(json.dumps(line) for line in told) + end)
    return path


def reader(folder, dead=(), now=BEGAN + 10):
    return Reader(folder, clock=lambda: now, lives=lambda pid, born: pid - 100 not in dead)


def look(folder, dead=(), now=BEGAN + 10, **more):
    there = reader(folder, dead, now)
    return state(there.look(), there.clock(), **more)


def view(t, number, members, came=(), went=(), cost=0.0):
    """A change of who takes part, as an elastic node tells it."""
    told = {"number": number, "members": list(members), "came": list(came), "went": list(went), "cost": cost}
    return {"view": told, "t": t}


def beat(t, **more):
    return {"t": t, **more}
