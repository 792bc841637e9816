"""A declared network: what a user says about the links between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flockstep import check, units


@dataclass(frozen=True, kw_only=True)
class Link:
    """What differs from the rest of the network, for one node or for the way from one node to another.

    Args:
        bandwidth: Both directions of a node's link, or the bottleneck of a pair's way, with its unit: "10 Mbit/s", "2
            MB/s". None: as the rest.
        up: What a node can send, where it differs from ``bandwidth``. Not for pairs.
        down: What a node can receive, where it differs from ``bandwidth``. Not for pairs.
        latency: One-way delay: seconds, or a text such as "20 ms". None: as the rest. Between two nodes it is the mean
            of theirs; that of a pair takes its place.

    Example:
        fs.Network(bandwidth="1 Gbit/s", nodes={3: fs.Link(up="10 Mbit/s", latency="50 ms")})
    """

    bandwidth: str | None = None
    up: str | None = None
    down: str | None = None
    latency: str | float | None = None

    def __post_init__(self) -> None:
        for name in ("bandwidth", "up", "down"):
            if getattr(self, name) is not None:
                units.bytes_per_second(getattr(self, name), f"Link.{name}")
        if self.latency is not None:
            units.seconds(self.latency, "Link.latency")


@dataclass(frozen=True, kw_only=True)
class Network:
    """A declared network: every node has an up- and a downlink, which transfers under way at once share fairly.

    Args:
        bandwidth: Of every node's uplink and downlink, with its unit: "100 Mbit/s", "12 MB/s".
        latency: One-way delay between two nodes: seconds, or a text such as "20 ms".
        nodes: What differs for single nodes, by rank: ``{3: Link(up="10 Mbit/s")}``.
        pairs: What differs for the way from one node to another: ``{(0, 1): Link(latency="80 ms")}``.

    Example:
        fs.Network(bandwidth="100 Mbit/s", latency="20 ms", pairs={(0, 1): fs.Link(latency="80 ms")})
    """

    bandwidth: str
    latency: str | float = 0.0
    nodes: Mapping[int, Link] = field(default_factory=dict)
    pairs: Mapping[tuple[int, int], Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        units.bytes_per_second(self.bandwidth, "Network.bandwidth")
        units.seconds(self.latency, "Network.latency")
        check.ranks(self, "nodes", self.nodes)
        for pair, link in self.pairs.items():
            if link.up or link.down:
                raise ValueError(f"Network.pairs[{pair}]: the way of a pair has one direction; give bandwidth only")

    def check_size(self, size: int) -> None:
        """Every node named here must exist."""
        check.ranks(self, "nodes", self.nodes, size)
        check.ranks(self, "pairs", dict.fromkeys(rank for pair in self.pairs for rank in pair), size)

    def up(self, rank: int) -> float:
        """Bytes per second this node can send."""
        link = self.nodes.get(rank, Link())
        return units.bytes_per_second(link.up or link.bandwidth or self.bandwidth)

    def down(self, rank: int) -> float:
        """Bytes per second this node can receive."""
        link = self.nodes.get(rank, Link())
        return units.bytes_per_second(link.down or link.bandwidth or self.bandwidth)

    def between(self, sender: int, receiver: int) -> float | None:
        """Bytes per second of a pair's own bottleneck, where one is declared."""
        link = self.pairs.get((sender, receiver))
        return None if link is None or link.bandwidth is None else units.bytes_per_second(link.bandwidth)

    def delay(self, sender: int, receiver: int) -> float:
        """One-way latency in seconds."""
        link = self.pairs.get((sender, receiver))
        if link is not None and link.latency is not None:
            return units.seconds(link.latency)
        return (self._node_latency(sender) + self._node_latency(receiver)) / 2

    def longest_delay(self, size: int) -> float:
        """The largest one-way latency between any two nodes."""
        ends = sorted(self._node_latency(rank) for rank in range(size))
        return max([sum(ends[-2:]) / 2, *(self.delay(*pair) for pair in self.pairs)])

    def _node_latency(self, rank: int) -> float:
        latency = self.nodes.get(rank, Link()).latency
        return units.seconds(self.latency if latency is None else latency)
