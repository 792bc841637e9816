"""Nodes with slow links on one machine: ``with Lab(nodes=2, rate="100 Mbit/s") as lab: lab.nodes[0].start([...])``.

Each node is a network namespace with one cable to a switch, a bridge in a namespace of its own, so that nothing of the
machine's own network changes. Both directions of a cable are limited by a token bucket. Whatever happens inside the
``with``, namespaces and processes are gone after it; those of a run that was killed go when the next one begins.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from flockstep import units
from flockstep.compare.lab import names
from flockstep.compare.lab.commands import check_tools, run

INTERFACE = "eth0"
_FILES = Path("/etc/netns")
_NAMESPACES = Path("/run/netns")
# The bucket must hold what arrives between two ticks of a 250 Hz kernel; the queue is that of a home router.
_BURST_SECONDS, _LEAST_BURST = 0.004, 16_000
_QUEUE = "50ms"


_UNLESS_ORPHANED = '[ "$PPID" = "$0" ] && exec "$@"'
"""Only who asked for it in time is told of a parent's death: one that had died before is seen to be gone."""


class LabNode:
    """One node: a namespace with an address."""

    def __init__(self, rank: int, namespace: str) -> None:
        self.rank, self.namespace = rank, namespace
        self.address = f"10.77.0.{rank + 1}"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process here. It ends with the laboratory at the latest, and with this process, however that ends."""
        alone = ["sh", "-c", _UNLESS_ORPHANED, str(os.getpid())]
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "setpriv", "--pdeathsig", "KILL", "--", *alone, *command],
            env={**os.environ, **(environment or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            # Ctrl-C is for whoever holds the laboratory; it ends the rest in order.
            start_new_session=True,
        )
        self.started.append(process)
        return process


class Lab:
    """So many nodes, each with a link of this rate both ways."""

    def __init__(self, *, nodes: int = 2, rate: str = "100 Mbit/s") -> None:
        if not 2 <= nodes <= 200:
            raise ValueError(f"Lab.nodes must be between 2 and 200, got {nodes}")
        self.bytes_per_second = units.bytes_per_second(rate, "Lab.rate")
        self.rate = rate
        self._name = names.new_lab()
        self._switch = f"{self._name}-switch"
        self.nodes = [LabNode(rank, f"{self._name}-node{rank}") for rank in range(nodes)]

    def __enter__(self) -> Self:
        check_tools()
        demolish(filter(names.is_stale, namespaces()))
        try:
            self._build()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def torch_environment(self, rank: int) -> dict[str, str]:
        """What torch.distributed wants to know, as torchrun would tell it."""
        return {
            "MASTER_ADDR": self.nodes[0].address,
            "MASTER_PORT": "29500",
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(len(self.nodes)),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            # Nobody else is in a laboratory's network.
            "FLOCKSTEP_INSECURE": "1",
        }

    def _build(self) -> None:
        run("ip", "netns", "add", self._switch, purpose="network namespaces")
        run("ip", "-n", self._switch, "link", "add", "name", "switch", "type", "bridge", purpose="bridges")
        run("ip", "-n", self._switch, "link", "set", "switch", "up", purpose="bridges")
        for node in self.nodes:
            self._write_files(node)
            self._connect(node)

    def _connect(self, node: LabNode) -> None:
        inside, outside, port = ("-n", node.namespace), ("-n", self._switch), f"port{node.rank}"
        run("ip", "netns", "add", node.namespace, purpose="network namespaces")
        veth = ("name", INTERFACE, "type", "veth", "peer", "name", port, "netns", self._switch)
        run("ip", *inside, "link", "add", *veth, purpose="virtual cables (veth)")
        run("ip", *inside, "addr", "add", f"{node.address}/16", "dev", INTERFACE, purpose="addresses")
        run("ip", *outside, "link", "set", port, "master", "switch", purpose="bridges")
        for where, device in ((inside, "lo"), (inside, INTERFACE), (outside, port)):
            run("ip", *where, "link", "set", device, "up", purpose="network interfaces")
        for where, device in ((inside, INTERFACE), (outside, port)):
            run("tc", *where, "qdisc", "add", "dev", device, "root", *self._limit(), purpose="token buckets (tc tbf)")

    def _limit(self) -> tuple[str, ...]:
        burst = max(_LEAST_BURST, round(self.bytes_per_second * _BURST_SECONDS))
        return ("tbf", "rate", f"{round(self.bytes_per_second * 8)}bit", "burst", f"{burst}b", "latency", _QUEUE)

    def _write_files(self, node: LabNode) -> None:
        # A name that no file knows would be asked for over the network, where nobody answers: seconds each time.
        folder = _FILES / node.namespace
        folder.mkdir(parents=True, exist_ok=True)
        known = ["127.0.0.1 localhost", f"127.0.1.1 {os.uname().nodename}"]
        known += [f"{form}{other.address} node{other.rank}" for other in self.nodes for form in ("", "::ffff:")]
        (folder / "hosts").write_text("\n".join([*known, ""]))
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")

    def _end(self) -> None:
        with _uninterrupted():
            demolish(name for name in namespaces() if names.belongs(name, self._name))
            for process in itertools.chain.from_iterable(node.started for node in self.nodes):
                process.wait()


def namespaces() -> list[str]:
    """All named network namespaces, and those whose files were left behind."""
    return sorted({path.name for folder in (_NAMESPACES, _FILES) if folder.is_dir() for path in folder.iterdir()})


def demolish(doomed: Iterator[str]) -> None:
    """End the processes of these namespaces by their ids, and remove them with their cables and files."""
    remaining = list(doomed)
    for name in remaining:
        for pid in _processes(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for name in remaining:
        # A namespace lives on unnamed for as long as somebody is in it: wait for them to be gone.
        for _ in itertools.takewhile(lambda _: _processes(name), range(100)):  # noqa: B023
            time.sleep(0.02)
        if (_NAMESPACES / name).exists():
            run("ip", "netns", "del", name, purpose="removing network namespaces")
        shutil.rmtree(_FILES / name, ignore_errors=True)
    with suppress(OSError):
        _FILES.rmdir()


def _processes(name: str) -> list[int]:
    if not (_NAMESPACES / name).exists():
        return []
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout
    return [int(pid) for pid in listed.split()]


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C waits until the cleaning is done."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
