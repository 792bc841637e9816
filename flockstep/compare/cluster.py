"""The machines a comparison runs on, as a user declares them: texts, checked here and read where a run begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flockstep as fs
from flockstep import check, units
from flockstep.faults import Fault, named
from flockstep.texts import fault_texts

_FAULTS: dict[str, Callable[[str], Fault]] = {
    "slowdown": fault_texts.slowdown,
    "crash": fault_texts.crash,
    "pause": fault_texts.pause,
    "partition": fault_texts.partition,
    "drop": fault_texts.drop,
}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """So many virtual nodes, their links, their speed, and what goes wrong."""

    nodes: int
    link: str
    latency: str
    step_time: str
    spread: float
    straggler: tuple[str, ...] = ()
    slowdown: tuple[str, ...] = ()
    crash: tuple[str, ...] = ()
    pause: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check.whole("compare", "nodes", self.nodes)
        self.network()
        self.compute().check_size(self.nodes)
        for fault in self.faults():
            check.ranks("compare", "faults", dict.fromkeys(named(fault)), self.nodes)

    def network(self) -> fs.Network:
        """The links."""
        return fs.Network(bandwidth=self.link, latency=self.latency)

    def compute(self) -> fs.Compute:
        """The speed of each node."""
        stragglers = fault_texts.stragglers(self.straggler)
        return fs.Compute(step=self.step_time, spread=self.spread, stragglers=stragglers)

    def faults(self) -> list[Fault]:
        """What goes wrong."""
        return [read(text) for kind, read in _FAULTS.items() for text in getattr(self, kind)]

    def record(self) -> dict[str, Any]:
        """As ``plan.json`` has it."""
        return {
            "nodes": self.nodes,
            "link": self.link,
            "latency": self.latency,
            "step": self.step_time,
            "spread": self.spread,
            "stragglers": list(self.straggler),
            "faults": [f"{kind} {text}" for kind in _FAULTS for text in getattr(self, kind)],
        }

    def describe(self) -> str:
        """In words, for a title."""
        return (
            f"{self.nodes} virtual nodes, {self.link} links, {self.latency} latency, {self.step_time} per gradient"
            + "".join(f", straggler {text}" for text in self.straggler)
            + "".join(f", {fault}" for fault in self.record()["faults"])
        )


@dataclass(frozen=True, kw_only=True)
class RealCluster:
    """So many processes of this machine, each with a limited link or with this machine's own."""

    nodes: int
    link: str | None

    def __post_init__(self) -> None:
        check.whole("compare", "nodes", self.nodes)
        if self.link is not None:
            units.bytes_per_second(self.link, "compare.link")
            check.whole("compare", "nodes", self.nodes, at_least=2)

    @property
    def links(self) -> str:
        """What the links are, in words."""
        return "this machine's own links" if self.link is None else f"{self.link} links between network namespaces"

    def record(self) -> dict[str, Any]:
        """As ``plan.json`` has it."""
        return {"nodes": self.nodes, "link": self.link, "links": self.links}

    def describe(self) -> str:
        """In words, for a title."""
        return f"{self.nodes} real processes, {self.links}"


def real_cluster(settings: dict[str, Any], given: set[str]) -> RealCluster:
    """A cluster for real; whatever only a virtual one can have is refused."""
    for name in ("latency", "step_time", "spread", "straggler", *_FAULTS):
        if name in given and settings[name]:
            raise ValueError(
                f"--{name.replace('_', '-')} can be declared for virtual nodes only: real ones are as fast and as "
                "reliable as this machine; leave it out, or leave out --real"
            )
    return RealCluster(
        nodes=settings["nodes"] if "nodes" in given else 2, link=settings["link"] if "link" in given else None
    )
