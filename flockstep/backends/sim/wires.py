"""Bytes in flight: a fluid model. Each flow uses some links at once; links are shared max-min fairly.

A message from i to j uses i's uplink and j's downlink. A ring collective is one flow over every link of the ring,
because its steps wait for each other: the slowest link sets the pace of all, and one slow link shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flockstep.backends.sim.cluster.fault_schedule import Outages, Spans, after
from flockstep.backends.sim.cluster.network import Network
from flockstep.backends.sim.kernel import Kernel


class _Link:
    __slots__ = ("capacity", "flows")

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.flows: dict[Flow, None] = {}


class Flow:
    """Bytes on their way: for each link, how much of it one byte per second of the flow takes."""

    __slots__ = ("done", "links", "outages", "rate", "remaining", "updated", "version")

    def __init__(self, links: dict[_Link, float], nbytes: float, outages: Spans, done: Callable[[], None]) -> None:
        self.links = links
        self.outages = outages
        self.remaining = nbytes
        self.done = done
        self.rate = 0.0
        self.updated = 0.0
        self.version = 0


class Wires:
    """All links of a run, and what is on them. Without a network, everything arrives at once."""

    def __init__(self, kernel: Kernel, network: Network | None, size: int, outages: Outages) -> None:
        self._kernel = kernel
        self._outages = outages
        self._network = network
        self._size = size
        if network is None:
            return
        network.check_size(size)
        self._up = [_Link(network.up(rank)) for rank in range(size)]
        self._down = [_Link(network.down(rank)) for rank in range(size)]
        declared = {pair: network.between(*pair) for pair in network.pairs}
        self._pairs = {pair: _Link(rate) for pair, rate in declared.items() if rate is not None}
        neighbours = [(rank, (rank + 1) % size) for rank in range(size)]
        self._ring = self._links(neighbours)
        self._ring_delay = max(network.delay(*pair) for pair in neighbours)
        # Of what a node gives to all others, one pair's way carries one part.
        self._all = self._links(neighbours, pair_share=0.0) | dict.fromkeys(self._pairs.values(), 1 / max(1, size - 1))
        self._all_delay = network.longest_delay(size)
        for start, _ in outages.anywhere:
            kernel.first(start, self._stall)

    def send(self, sender: int, receiver: int, nbytes: float, done: Callable[[], None]) -> Flow | None:
        """Move bytes from one node to another; ``done()`` when the last has arrived."""
        outages = self._outages.between(sender, receiver)
        if self._network is None or sender == receiver:
            self._kernel.at(after(outages, self._kernel.now), done)
            return None
        links = self._links([(sender, receiver)])
        return self._begin(links, nbytes, self._network.delay(sender, receiver), outages, done)

    def ring(self, nbytes: float, stages: int, done: Callable[[], None]) -> Flow | None:
        """Every node passes so many bytes to its neighbour, in stages that wait for each other."""
        outages = self._outages.anywhere
        if self._network is None or self._size == 1:
            self._kernel.at(after(outages, self._kernel.now), done)
            return None
        return self._begin(self._ring, nbytes, stages * self._ring_delay, outages, done)

    def among(self, ranks: Sequence[int], nbytes: float, delay: float, done: Callable[[], None]) -> Flow | None:
        """Each of some nodes gives so many bytes, divided among the others, directly; after a delay that stages and
        whatever else they must agree on take."""
        outages = self._outages.among(ranks)
        if self._network is None or len(ranks) == 1:
            self._kernel.at(after(outages, self._kernel.now, delay), done)
            return None
        links = self._links(zip(ranks, (*ranks[1:], ranks[0]), strict=True), pair_share=0.0)
        there = set(ranks)
        pairs = [link for pair, link in self._pairs.items() if there.issuperset(pair)]
        return self._begin(links | dict.fromkeys(pairs, 1 / (len(ranks) - 1)), nbytes, delay, outages, done)

    def longest_delay(self, ranks: Sequence[int]) -> float:
        """The largest one-way latency between two of these nodes."""
        if self._network is None or len(ranks) == 1:
            return 0.0
        return max(self._network.delay(a, b) for a in ranks for b in ranks if a != b)

    def ring_seconds(self, nbytes: float) -> float:
        """How long a mean takes whose ring has the links to itself: all its stages, and so many bytes of each node."""
        if self._network is None or self._size == 1:
            return 0.0
        rate = min(link.capacity / weight for link, weight in self._ring.items())
        return 2 * (self._size - 1) * self._ring_delay + nbytes / rate

    def all_to_all(self, nbytes: float, done: Callable[[], None]) -> Flow | None:
        """Every node gives so many bytes, divided among all the others, directly."""
        outages = self._outages.anywhere
        if self._network is None or self._size == 1:
            self._kernel.at(after(outages, self._kernel.now), done)
            return None
        return self._begin(self._all, nbytes, self._all_delay, outages, done)

    def cut(self, flow: Flow) -> None:
        """Stop a flow: its sender or receiver is gone."""
        if flow.version >= 0:
            self._remove(flow)

    def lose(self, rank: int) -> None:
        """A node died: what still moves to or from it leaves its links."""
        if self._network is not None:
            for flow in [*self._up[rank].flows, *self._down[rank].flows]:
                self.cut(flow)

    def _links(self, pairs: Iterable[tuple[int, int]], pair_share: float = 1.0) -> dict[_Link, float]:
        links: dict[_Link, float] = {}
        for sender, receiver in pairs:
            links[self._up[sender]] = links[self._down[receiver]] = 1.0
            if pair_share and (sender, receiver) in self._pairs:
                links[self._pairs[sender, receiver]] = pair_share
        return links

    def _begin(
        self, links: dict[_Link, float], nbytes: float, delay: float, outages: Spans, done: Callable[[], None]
    ) -> Flow:
        flow = Flow(links, nbytes, outages, done)
        self._kernel.at(after(outages, self._kernel.now, delay), self._add, flow)
        return flow

    def _add(self, flow: Flow) -> None:
        if flow.version < 0:
            return
        flow.updated = self._kernel.now
        for link in flow.links:
            link.flows[flow] = None
        self._share(flow)

    def _stall(self) -> None:
        """An outage begins: a flow it stops leaves its links to others, and goes on with the rest when it is over."""
        now = self._kernel.now
        for flow in dict.fromkeys(flow for link in self._up for flow in link.flows):
            if (end := after(flow.outages, now)) > now:
                self._settle(flow, 0.0)
                self._leave_links(flow)
                self._kernel.first(end, self._add, flow)

    def _remove(self, flow: Flow) -> None:
        flow.version = -1
        self._leave_links(flow)

    def _leave_links(self, flow: Flow) -> None:
        left: dict[Flow, None] = {}
        for link in flow.links:
            link.flows.pop(flow, None)
            left.update(link.flows)
        while left:
            for settled in self._share(next(iter(left))):
                left.pop(settled, None)

    def _arrive(self, flow: Flow, version: int) -> None:
        if flow.version == version:
            self._remove(flow)
            flow.done()

    def _share(self, flow: Flow) -> Iterable[Flow]:
        """Set anew the rates of all flows that share links with this one, directly or through others."""
        if all(len(link.flows) == 1 for link in flow.links):
            self._set_rate(flow, min(link.capacity / weight for link, weight in flow.links.items()))
            return (flow,)
        rates = _max_min(*_connected(flow))
        for member, rate in rates.items():
            if rate != member.rate:
                self._set_rate(member, rate)
        return rates

    def _set_rate(self, flow: Flow, rate: float) -> None:
        self._settle(flow, rate)
        self._kernel.at(self._kernel.now + flow.remaining / rate, self._arrive, flow, flow.version)

    def _settle(self, flow: Flow, rate: float) -> None:
        """Count what has moved so far; from now on it moves at another rate."""
        now = self._kernel.now
        flow.remaining = max(0.0, flow.remaining - flow.rate * (now - flow.updated))
        flow.rate, flow.updated = rate, now
        flow.version += 1


def _connected(flow: Flow) -> tuple[dict[Flow, None], dict[_Link, None]]:
    flows: dict[Flow, None] = {flow: None}
    links: dict[_Link, None] = {}
    pending = [flow]
    while pending:
        for link in pending.pop().links:
            if link not in links:
                links[link] = None
                new = [other for other in link.flows if other not in flows]
                flows.update(dict.fromkeys(new))
                pending += new
    return flows, links


def _max_min(flows: dict[Flow, None], links: dict[_Link, None]) -> dict[Flow, float]:
    """Water-filling: the most crowded link settles its flows first, the rest share what is left."""
    rates: dict[Flow, float] = {}
    room = {link: link.capacity for link in links}
    demand = {link: sum(flow.links[link] for flow in link.flows) for link in links}
    unsettled = {link: dict(link.flows) for link in links}
    while len(rates) < len(flows):
        tightest = min((link for link in links if unsettled[link]), key=lambda link: room[link] / demand[link])
        rate = room[tightest] / demand[tightest]
        for flow in list(unsettled[tightest]):
            rates[flow] = rate
            for link, weight in flow.links.items():
                room[link] = max(0.0, room[link] - weight * rate)
                demand[link] -= weight
                del unsettled[link][flow]
    return rates
