"""Checks of another machine, from its name to how many bytes a second get there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

from flockstep.backends.real.doctor import lookups, measure
from flockstep.backends.real.doctor.finding import Finding, Mark, failed, ok, skipped, warning
from flockstep.backends.real.doctor.identity import NO_ANSWER, Caller
from flockstep.backends.real.doctor.probe_server import RUN, ProbeServer, any_rank, stand_on
from flockstep.backends.real.mailbox.endpoint import LOOPBACK, ListenOn
from flockstep.backends.real.mailbox.identity_query import Identity
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.wire import VERSION
from flockstep.backends.real.security.keys import Keys
from flockstep.errors import LostPeer
from flockstep.units import show_seconds

_SKEW = 1.0
_NOBODY_TO_MEASURE = "this is a training node; run `flockstep doctor --listen` there"


@dataclass(frozen=True, kw_only=True)
class Bag:
    """What a doctor brings along to every visit."""

    limits: Limits
    keys: Keys | None = None
    keys_wanted: bool = False
    """Whether there should be keys, even if those there are do not work."""
    host: str | None = None
    port: int = 0
    insecure: bool = False
    quick: bool = False

    @property
    def trips(self) -> int:
        """How many round trips a latency is the median of."""
        return 3 if self.quick else 9

    @property
    def seconds(self) -> float:
        """Identity how long to send in each direction."""
        return min(0.2 if self.quick else 1.0, self.limits.timeout / 4)


class Visit:
    """One machine, looked at step by step: each check stands on those before."""

    def __init__(self, host: str, port: int, bag: Bag) -> None:
        self._bag = bag
        self._caller = Caller(host, port, bag.keys, bag.limits.connect)
        self._own_address = LOOPBACK
        self._abouts: list[Identity] = []

    def findings(self) -> Iterator[Finding]:
        """One after another; none after one without which the rest makes no sense."""
        for check in (self._name, self._connection, self._who):
            yield (finding := check())
            if finding.mark in (Mark.FAILED, Mark.SKIPPED):
                return
        yield self._versions()
        if self._about.protocol != VERSION:
            return
        yield self._what()
        yield (clock := self._clock())
        if clock.mark is Mark.FAILED:
            return
        yield self._latency()
        yield from self._measured()

    @property
    def _about(self) -> Identity:
        """Of several answers the quickest, which tells the time best."""
        return min(self._abouts, key=lambda about: about.round_trip)

    def _name(self) -> Finding:
        host = self._caller.host
        try:
            found, took = lookups.addresses(host, self._caller.seconds)
        except lookups.Unresolved as why:
            fix = f"check the spelling, or give its address instead, or: echo 'ADDRESS {host}' | sudo tee -a /etc/hosts"
            return failed("name", f"{host} has no address: {why}", fix)
        if found == [host]:
            return ok("name", f"{host} is an address already")
        seen = f"{host} is {', '.join(found)}, found in {show_seconds(took)}"
        if took > lookups.SLOW:
            return warning("name", seen, f"echo '{found[0]} {host}' | sudo tee -a /etc/hosts")
        return ok("name", seen)

    def _connection(self) -> Finding:
        caller = self._caller
        begin = time.perf_counter()
        try:
            with caller.connect() as connection:
                took = time.perf_counter() - begin
                self._own_address = str(connection.getsockname()[0])
        except TimeoutError:
            fix = f"open TCP port {caller.port} in the firewalls on the way, and look whether {caller.host} is on"
            return failed("connection", f"no answer from {caller.address} in {caller.seconds:g} s", fix)
        except ConnectionRefusedError:
            fix = f"start a node there, or: flockstep doctor --listen --host {caller.host} --port {caller.port}"
            return failed("connection", f"nothing listens at {caller.address}", fix)
        except OSError as error:
            fix = f"look whether this machine has a way to {caller.host}: ping {caller.host}"
            return failed("connection", f"{caller.address}: {error.strerror or error}", fix)
        return ok("connection", f"{caller.address} takes connections, in {show_seconds(took)}")

    def _who(self) -> Finding:
        if self._bag.keys_wanted and self._bag.keys is None:
            return skipped("keys", "not tested, nor anything further: the keys of this side do not work")
        finding, about = self._caller.who()
        if about is None:
            return finding
        self._abouts.append(about)
        keys = self._bag.keys
        if keys is not None and about.rank == keys.rank and about.run == RUN.hex():
            seen = f"both sides use the keys of node {keys.rank}"
            return failed("keys", seen, "give each side the keys of another node, with --rank")
        return finding

    def _versions(self) -> Finding:
        about, ours = self._about, version("flockstep")
        if about.protocol != VERSION:
            seen = (
                f"it speaks version {about.protocol} of the protocol, this side {VERSION}; flockstep {about.flockstep}"
            )
            newer = about.flockstep if about.protocol > VERSION else ours
            return failed("versions", f"{seen} there, {ours} here", f"pip install flockstep=={newer}, on both sides")
        if about.flockstep != ours:
            seen = f"flockstep {about.flockstep} there, {ours} here"
            return failed("versions", f"{seen}; the protocol is the same", f"pip install flockstep=={ours}, there")
        return ok("versions", f"flockstep {ours} and protocol {VERSION}, as here")

    def _what(self) -> Finding:
        about = self._about
        if about.run == RUN.hex():
            return ok("mailbox", "a listening doctor")
        return ok("mailbox", f"node {about.rank} of {about.size} in training, with a timeout of {about.timeout:g} s")

    def _latency(self) -> Finding:
        return ok(
            "latency",
            f"{show_seconds(statistics.median(about.round_trip for about in self._abouts))} there and back, "
            f"median of {len(self._abouts)}",
        )

    def _clock(self) -> Finding:
        try:
            while len(self._abouts) < self._bag.trips:
                self._abouts.append(self._caller.ask())
        except NO_ANSWER as error:
            seen = f"it answered {len(self._abouts)} of {self._bag.trips} times, and then no more: {error}"
            return failed("clock", seen, "look there whether it has ended")
        skew = self._about.clock_skew
        direction = "ahead of" if skew > 0 else "behind"
        seen = f"{show_seconds(abs(skew))} {direction} ours, give or take {show_seconds(self._about.round_trip / 2)}"
        if not abs(skew) <= _SKEW:
            message = f"{seen}; only the times in logs, and when certificates begin and end, depend on it"
            return warning("clock", message, "timedatectl set-ntp true, on both machines")
        return ok("clock", seen)

    # ------------------------------------------------------------------------------------------------------------

    def _measured(self) -> Iterator[Finding]:
        if self._about.run != RUN.hex():
            yield skipped("bandwidth", f"not measured: {_NOBODY_TO_MEASURE}")
            yield skipped("both ways", f"not tested: {_NOBODY_TO_MEASURE}")
            return
        bag, about, closed = self._bag, self._about, ""
        rank = any_rank() if bag.keys is None else bag.keys.rank
        host = bag.host or self._own_address
        try:
            site, risk = stand_on(host, bag.port, bag.keys, insecure=bag.insecure)
        except ValueError:
            site, risk, closed = ListenOn(), "", f"not tested: without keys this side does not listen on {host}"
        try:
            with ProbeServer(rank, bag.limits, site) as office:
                office.meet(about.rank, self._caller.address, about.incarnation)
                yield self._bandwidth(office)
                yield (
                    warning("both ways", closed, "give --keys DIR, or --insecure")
                    if closed
                    else self._back(office, risk)
                )
        except OSError as error:
            fix = "give --host an address of this machine, and --port one that is free"
            yield failed("both ways", str(error), fix)

    def _bandwidth(self, office: ProbeServer) -> Finding:
        peer, seconds = self._about.rank, self._bag.seconds
        try:
            there = measure.rate(lambda count: office.push(peer, count), seconds)
            back = measure.rate(lambda count: office.pull(peer, count), seconds)
        except LostPeer as error:
            why = measure.reason(error, self._bag.limits)
            return failed("bandwidth", why, "try again with a longer --timeout; look there whether it has ended")
        return ok("bandwidth", f"{measure.show_rate(there)} there, {measure.show_rate(back)} back")

    def _back(self, office: ProbeServer, risk: str) -> Finding:
        port = self._bag.port or "PORT"
        fix = (
            f"choose a --port and open it: sudo ufw allow {port}/tcp; or give --host, by which it reaches this machine"
        )
        try:
            why = office.call(self._about.rank)
        except LostPeer as error:
            why = measure.reason(error, self._bag.limits)
        if why:
            return failed("both ways", f"it cannot reach this machine at {office.address}: {why}", fix)
        seen = f"it reaches this machine at {office.address}"
        return warning("both ways", f"{seen}; {risk}", "give both sides --keys DIR") if risk else ok("both ways", seen)
