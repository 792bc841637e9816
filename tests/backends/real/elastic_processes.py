"""Nodes of an elastic run as processes that can be killed, stopped and started again; what they say, and the end."""

import os
import queue
import signal
import threading
import time
from contextlib import suppress

from elastic_loop import child

from flockstep.backends.real.launch.child_processes import context

PATIENCE = 60
_PACE = 0.1


class Process:
    """One node."""

    def __init__(self, environment, strategy, elastic, options, dies=None):
        self._pipe, theirs = context().Pipe()
        self.process = context().Process(target=child, args=(theirs, environment, strategy, elastic, options, dies))
        self.process.start()
        theirs.close()
        self.last, self.begins = {}, None
        # Listened to all the time: one that nobody listens to would stand still.
        self._lines = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self):
        with suppress(EOFError, OSError):
            while True:
                self._lines.put(self._pipe.recv())
        self._lines.put(None)

    def until(self, name, least=None):
        """The first line from now on that holds a name, of a value not below ``least``."""
        while True:
            line = self.hear()
            assert "failed" not in line or name == "failed", line
            if name in line and (least is None or line[name] >= least):
                return line

    def hear(self):
        """The next line."""
        line = self._lines.get(timeout=PATIENCE)
        assert line is not None, f"the node ended after {self.last}"
        self.last, self.begins = line, line.get("begins", self.begins)
        return line

    @property
    def step(self):
        """The last that it has told of."""
        return self.last.get("step", self.begins or 0)

    def may(self, step):
        self._pipe.send(("may", step))

    def end(self, step):
        self._pipe.send(("end", step))

    @property
    def has_spoken(self):
        return not self._lines.empty()

    def waits(self, seconds):
        """Until it says something, but no longer than that."""
        end = time.monotonic() + seconds
        while not self.has_spoken and time.monotonic() < end:
            time.sleep(0.002)

    @property
    def lives(self):
        return self.process.is_alive()

    def kill(self):
        self.process.kill()
        self.process.join()

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self):
        self.process.kill()
        self.process.join()
        self._listener.join()
        self._pipe.close()


class Run:
    """Nodes of one run, by rank."""

    def __init__(
        self, folder, size, strategy="LocalSGD", elastic=True, timeout=30, options=None, dies=None, **environment
    ):
        self._size, self._given = size, (strategy, elastic, options or {})
        self._environment = {"FLOCKSTEP_TIMEOUT": str(timeout)} | environment
        self._store = {"FLOCKSTEP_STORE": str(folder / "store")}
        self.nodes, self._all = {}, []
        for rank in range(size):
            self.start(rank, (dies or {}).get(rank))

    def start(self, rank, dies=None):
        return self._begin(rank, {"RANK": str(rank), "WORLD_SIZE": str(self._size)} | self._store, dies)

    def join(self, rank, contact):
        """One that comes late, and knows no store."""
        return self._begin(rank, {"FLOCKSTEP_JOIN": contact})

    def _begin(self, rank, place, dies=None):
        self.nodes[rank] = Process(self._environment | place, *self._given, dies)
        self._all.append(self.nodes[rank])
        return self.nodes[rank]

    def step(self, to, *ranks):
        """Let nodes, all unless given, go to a step, and wait until they are there."""
        nodes = [self.nodes[rank] for rank in ranks or self.nodes]
        for node in nodes:
            node.may(to)
        for node in nodes:
            node.until("step", to)

    def admit(self, *newcomers):
        """Let whoever is in step on until those who come are in, too; the step at which the last of them begins."""
        while coming := [node for node in newcomers if node.begins is None]:
            # Not as fast as they can: it takes a while to start, and nobody should be far ahead then.
            coming[0].waits(_PACE)
            inside = [node for node in self.nodes.values() if node not in coming and node.lives]
            step = 1 + max((node.step for node in inside), default=0)
            for node in inside:
                node.may(step)
            # They may wait for who comes, and that one has something to say then.
            while any(node.step < step for node in inside) and not any(node.has_spoken for node in coming):
                time.sleep(0.001)
                for node in inside:
                    if node.has_spoken:
                        assert "failed" not in node.hear(), node.last
            for node in coming:
                if node.has_spoken:
                    node.until("begins")
        return max(node.begins for node in newcomers)

    def end(self, step):
        """Let all that live come to their end; what they say last, by rank."""
        living = {rank: node for rank, node in self.nodes.items() if node.lives}
        for node in living.values():
            node.end(step)
        return {rank: node.until("ended") for rank, node in living.items()}

    def close(self):
        for node in self._all:
            node.close()


def alike(ends):
    """Whether all have the same model, to the bit."""
    return len({tuple(end["model"]) for end in ends.values()}) == 1
