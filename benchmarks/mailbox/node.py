"""One of the two nodes of part B: node 0 trains and serves, node 1 pulls whenever it is told to.

Node 0 leads, over a mailbox of their own: it asks node 1 to pull so many bodies, and trains until the reply is here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.mailbox.boxes import NOTHING, house, raw
from benchmarks.mailbox.rows import BARE, BARE_TLS, BOX, BOX_TLS, WAYS
from benchmarks.mailbox.ways import BODY_BYTES, CLIENT, SERVER, Place, body
from benchmarks.slowlink.loop import Step, build, stepper
from flockstep.backends.real.mailbox.mailbox import Mailbox
from flockstep.errors import LostPeer
from flockstep.message import Message

ROWS = (BARE, BOX, BARE_TLS, BOX_TLS)
HOMES = ONE_CORE, SPARE_CORE = "one core", "a spare core"
HIDDEN, BATCH = 256, 16
_WARM_STEPS = 10
Homes = dict[str, set[int]]


def main() -> None:
    """Do this rank's part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", nargs=2, required=True, help="each node's address")
    parser.add_argument("--folder", type=Path, required=True, help="where keys and addresses are")
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    # The network of the laboratory has nobody else in it.
    warnings.filterwarnings("ignore", message="the mailbox listens on")
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    use({cores[rank % len(cores)]})
    torch.set_num_threads(1)
    place = Place(options.host[rank], options.folder)
    if rank == SERVER:
        homes = {ONE_CORE: set(cores[:1]), SPARE_CORE: set(cores)}
        print(json.dumps({"turns": lead(place, homes, options.rounds)}))
    else:
        follow(place)
        print("{}")


def use(cores: set[int]) -> None:
    """Let all threads of this process run here, and those they will start."""
    for thread in Path("/proc/self/task").iterdir():
        # One may end meanwhile.
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


# Node 0 -----------------------------------------------------------------------------------------------------------


class Speed(NamedTuple):
    """Of the training loop over a stretch."""

    steps: float
    """Per second."""
    running: float
    """Of each second, how much its thread had a processor: the rest it waited for one, or for the interpreter."""


def lead(place: Place, homes: Homes, rounds: int) -> list[dict[str, Any]]:
    """Speeds with and without pulling, turn by turn; and what was pulled."""
    data = body()
    lines = {name: WAYS[name].serve(place, data) for name in ROWS}
    opened = house(place, SERVER)
    opened.box.answer("where", lambda sender, message: _text(lines))
    note = place.folder / "control"
    note.with_suffix(".new").write_text(str(opened.box.members.me))
    note.with_suffix(".new").rename(note)
    try:
        with ThreadPoolExecutor(1) as aside:
            return _measure(opened.box, stepper(*build(HIDDEN), BATCH), aside, homes, rounds)
    finally:
        opened.close()


def _measure(box: Mailbox, step: Step, aside: ThreadPoolExecutor, homes: Homes, rounds: int) -> list[dict[str, Any]]:
    def disturbed(name: str) -> tuple[Speed, float]:
        reply = aside.submit(box.ask, CLIENT, "pull", _text(name))
        speed = _train(step, reply.done)
        return speed, _read(reply.result())

    for _ in range(_WARM_STEPS):
        step()
    for name in ROWS:
        seconds = disturbed(name)[1]
    found = []
    for number in range(rounds):
        first = number % len(ROWS)
        for home, cores in homes.items():
            print(f"serving while training on {home}, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            use(cores)
            # Undisturbed before and after each: a machine that slows down does so to both.
            before = _undisturbed(step, seconds)
            for name in ROWS[first:] + ROWS[:first]:
                mine, took = disturbed(name)
                after = _undisturbed(step, seconds)
                alone = Speed(*((a + b) / 2 for a, b in zip(before, after, strict=True)))
                turn = {"share": mine.steps / alone.steps, "running": mine.running / alone.running}
                found.append({"row": name, "home": home, **turn, "alone": alone.steps, "rate": BODY_BYTES / took})
                before = after
    # It may be gone before its reply is here.
    with suppress(LostPeer):
        box.ask(CLIENT, "end", NOTHING)
    return found


def _undisturbed(step: Step, seconds: float) -> Speed:
    """For as long as a pull takes."""
    end = time.perf_counter() + seconds
    return _train(step, lambda: time.perf_counter() >= end)


def _train(step: Step, done: Callable[[], bool]) -> Speed:
    began, used, steps = time.perf_counter(), time.thread_time(), 0
    while not steps or not done():
        step()
        steps += 1
    took = time.perf_counter() - began
    return Speed(steps / took, (time.thread_time() - used) / took)


# Node 1 -----------------------------------------------------------------------------------------------------------


def follow(place: Place) -> None:
    """Pull whenever told to; reply with the seconds that it took."""
    note = place.folder / "control"
    opened = house(place, CLIENT, lambda rank: note.read_text() if note.exists() else None)
    where = _read(opened.box.ask(SERVER, "where", NOTHING))
    callers = {name: WAYS[name].connect(place, line) for name, line in where.items()}
    ended = threading.Event()

    def pull(sender: int, message: Message) -> Message:
        began = time.perf_counter()
        callers[_read(message)].pull()
        return _text(time.perf_counter() - began)

    def end(sender: int, message: Message) -> Message:
        ended.set()
        return NOTHING

    opened.box.answer("pull", pull)
    opened.box.answer("end", end)
    ended.wait()
    for caller in callers.values():
        caller.close()
    opened.close()


def _text(value: Any) -> Message:
    return raw(torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8))


def _read(message: Message) -> Any:
    return json.loads(message.data.numpy().tobytes())


if __name__ == "__main__":
    main()
