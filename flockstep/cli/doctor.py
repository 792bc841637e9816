"""``flockstep doctor``: what is wrong between machines, one line per check, a fix for each failure."""

from __future__ import annotations

import re
import shlex
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from flockstep import units
from flockstep.backends.real.doctor import local_checks, lookups
from flockstep.backends.real.doctor.finding import Finding, Mark
from flockstep.backends.real.doctor.probe_server import ProbeServer, stand_on
from flockstep.backends.real.doctor.remote_checks import Bag, Visit
from flockstep.backends.real.mailbox.endpoint import LOOPBACK, is_loopback
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.security.keys import Keys, ranks_in
from flockstep.cli.support import consoles, options

HELP = """Find out what is wrong between machines before a training does.

One line per check, and the fix below what failed: versions, names, ports, keys,
clocks, latency and bandwidth. Shows every deadline that follows from --timeout.
Ends with exit code 1 where something failed.

\b
[bold]This machine[/bold]
  flockstep doctor
  flockstep doctor --keys keys --rank 0

\b
[bold]Two machines[/bold]; the one that listens prints what to type on the other:
  flockstep doctor --listen --keys keys --rank 0
  flockstep doctor 10.0.0.1:41234 --keys keys --rank 1

\b
[bold]A node in training[/bold], at its node.address; all but bandwidth is measured:
  flockstep doctor first.local:29500 --keys keys --rank 1
"""

_STYLES = {Mark.OK: "green", Mark.WARNING: "yellow", Mark.FAILED: "bold red", Mark.SKIPPED: "dim"}
_PLACE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+)):([0-9]{1,5})", re.ASCII)
_EVERYWHERE = ("0.0.0.0", "::")

Peers = Annotated[
    list[str] | None, typer.Argument(metavar="HOST:PORT", help="Mailboxes of nodes, or doctors that listen.")
]
KeysFolder = Annotated[
    Path | None, typer.Option("--keys", envvar="FLOCKSTEP_KEYS", help="What `flockstep keys create` made.")
]
Rank = Annotated[int | None, typer.Option(help="Whose keys to use; the first there are unless given.", min=0)]
Timeout = Annotated[str, typer.Option(help="The timeout of the training, from which all deadlines follow.")]
Host = Annotated[
    str | None, typer.Option(envvar="FLOCKSTEP_HOST", help="Where to listen, and where others reach this machine.")
]
Port = Annotated[
    int, typer.Option(envvar="FLOCKSTEP_PORT", help="The port to listen on; 0 is any free one.", min=0, max=65535)
]
Insecure = Annotated[
    bool, typer.Option("--insecure", envvar="FLOCKSTEP_INSECURE", help="Listen for other machines without keys.")
]
Listen = Annotated[bool, typer.Option("--listen", help="Answer the doctors of other machines until Ctrl-C.")]
Quick = Annotated[bool, typer.Option("--quick", help="Measure for a moment only.")]


def doctor(
    peers: Peers = None,
    keys: KeysFolder = None,
    rank: Rank = None,
    timeout: Timeout = "30s",
    host: Host = None,
    port: Port = 0,
    insecure: Insecure = False,
    listen: Listen = False,
    quick: Quick = False,
    debug: options.Debug = False,
) -> None:
    """Look for what is wrong."""
    with consoles.plain_errors(debug=debug):
        seconds = units.seconds(timeout, "--timeout")
        if not seconds:
            raise ValueError(f"--timeout must be positive, got {timeout!r}")
        if rank is not None and keys is None:
            raise ValueError("--rank says whose keys to use; give --keys DIR as well")
        if host in _EVERYWHERE:
            raise ValueError(f"--host is the address by which others reach this machine; {host} leads nowhere")
        if listen:
            if peers:
                raise ValueError("--listen waits for others to call; leave HOST:PORT away, or --listen")
            _listen(Limits(seconds), keys, rank, host, port, insecure=insecure)
            return
        places = {peer: _place(peer) for peer in peers or ()}
        bag = Bag(limits=Limits(seconds), host=host, port=port, insecure=insecure, quick=quick)
        failures = _examine(places, bag, keys, rank)
    if failures:
        raise typer.Exit(consoles.FAILED)


def _examine(places: dict[str, tuple[str, int]], bag: Bag, folder: Path | None, rank: int | None) -> int:
    """All checks, shown as they are made; how many failed."""
    sheet = _Sheet()
    sheet.section(
        "This machine", _this_machine(bag.limits, apart=any(not is_loopback(host) for host, _ in places.values()))
    )
    if folder is not None:
        findings, found = local_checks.keys(folder, rank)
        bag = replace(bag, keys=found, keys_wanted=True)
        sheet.section(f"Keys in {folder}", findings)
    sheet.deadlines(bag.limits)
    for text, (host, port) in places.items():
        sheet.section(f"From here to {text}", Visit(host, port, bag).findings())
    return sheet.total()


def _this_machine(limits: Limits, *, apart: bool) -> Iterator[Finding]:
    yield local_checks.versions()
    yield local_checks.own_name(limits.connect, apart=apart)
    yield local_checks.own_address(limits.connect)
    yield local_checks.loopback(limits)
    yield local_checks.open_files()


class _Sheet:
    """What the doctor writes down, line by line."""

    def __init__(self) -> None:
        self._console = consoles.results()
        self._counts: Counter[Mark] = Counter()

    def section(self, title: str, findings: Iterable[Finding]) -> None:
        """A heading, and each finding as soon as it is there."""
        self._say(Text(_plain(title), style="bold"))
        rows = iter(findings)
        while (finding := self._next(title, rows)) is not None:
            self._counts[finding.mark] += 1
            mark = (f"  {finding.mark:<9}", _STYLES[finding.mark])
            self._say(Text.assemble(mark, f"{finding.check:<13}", _plain(finding.seen)))
            if finding.fix:
                self._say(Text(f"{'':<11}fix: {_plain(finding.fix)}"))

    def deadlines(self, limits: Limits) -> None:
        """All that follows from the one timeout."""
        self._say(Text(f"Deadlines, all from --timeout {units.show_seconds(limits.timeout)}", style="bold"))
        for name, seconds in limits.by_name().items():
            self._say(Text(f"{'':<11}{name:<28}{units.show_seconds(seconds):>10}"))

    def total(self) -> int:
        """The last line; how many failed."""
        failures, warnings = self._counts[Mark.FAILED], self._counts[Mark.WARNING]
        checks = sum(self._counts.values()) - self._counts[Mark.SKIPPED]
        words = f"{checks} checks, {failures} failed, {warnings} warning{'' if warnings == 1 else 's'}."
        self._say(Text(words, style="bold red" if failures else "bold green"))
        return failures

    def _next(self, title: str, rows: Iterator[Finding]) -> Finding | None:
        console: Console = consoles.messages()
        if not consoles.is_live(console):
            return next(rows, None)
        with console.status(Text(_plain(f"{title} ..."))):
            return next(rows, None)

    def _say(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def _listen(
    limits: Limits, folder: Path | None, rank: int | None, host: str | None, port: int, *, insecure: bool
) -> None:
    """Answer until Ctrl-C, which is how this ends well."""
    number = 0 if folder is None else (ranks_in(folder) or [0])[0] if rank is None else rank
    keys = None if folder is None else Keys.find(folder, number)
    host = host or (lookups.outward() if keys or insecure else LOOPBACK)
    site, risk = stand_on(host, port, keys, insecure=insecure)
    if risk:
        consoles.messages().print(f"Warning: {risk}", style="yellow", markup=False, soft_wrap=True)
    console = consoles.results()

    def tell(line: str) -> None:
        console.print(_plain(line), markup=False, soft_wrap=True)

    try:
        with ProbeServer(number, limits, site, tell) as office:
            words = ["flockstep", "doctor", office.address]
            words += ["--keys", "DIR"] if keys else ["--insecure"] if risk else []
            where = "on this machine" if is_loopback(host) else "on the other machine"
            tell(f"A doctor listens at {office.address}{f', with the keys of node {number}' if keys else ''}.")
            tell(f"Type {where}:  {shlex.join(words)}")
            if is_loopback(host):
                tell("Other machines cannot reach it: for these give --host, with --keys DIR.")
            tell("Ctrl-C ends it.")
            threading.Event().wait()
    except KeyboardInterrupt:
        tell("Ended.")


def _place(text: str) -> tuple[str, int]:
    match = _PLACE.fullmatch(text)
    if match is None or not 0 < int(match[3]) < 2**16:
        raise ValueError(f"HOST:PORT must be such as first.local:29500 or [::1]:29500, got {text!r}")
    return match[1] or match[2], int(match[3])


def _plain(text: str) -> str:
    """What others sent, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
