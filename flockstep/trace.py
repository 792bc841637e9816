"""What happened when: losses over time, and for each node its steps, bytes and seconds."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from flockstep import units
from flockstep.errors import nodes_named
from flockstep.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Row:
    """The average model at one moment; in a loop of your own, what node 0 logged.

    Args:
        seconds: When, in seconds of the run, virtual or real; time stands still while a loss is measured.
        step: Steps each node had taken; where they step on their own, about so many. In a loop of your own, node 0's.
        loss: The workload's loss of the average model. In a loop of your own, what was given to ``node.log``.
        bytes: Bytes sent so far, averaged over nodes. In a loop of your own, node 0's.
        spread: Mean squared distance of the nodes' models from their average. In a loop of your own, when
            ``node.average_model`` was last called; nan before.
    """

    seconds: float
    step: int
    loss: float
    bytes: float
    spread: float


@dataclass(frozen=True)
class ViewChange:
    """In an elastic run: from some moment on, other nodes take part.

    Args:
        members: Ranks of the nodes that take part from then on.
        came: Who has come, or come back.
        went: Who was left out: died, was cut off or stood still.
        cost: Seconds that this node had waited in a round by then, for which nothing was to be had.
        seconds: When, in seconds of the run.
        number: The view's number: the same at all nodes, and higher than those of the views before.
    """

    members: tuple[int, ...]
    came: tuple[int, ...]
    went: tuple[int, ...]
    cost: float
    seconds: float = 0.0
    number: int = 0

    def __post_init__(self) -> None:
        for name in ("members", "came", "went"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def what(self) -> str:
        """Who came and who was left out, in words."""
        parts = ((self.came, "came"), (self.went, "left out"))
        return ", ".join(f"{nodes_named(list(ranks))} {verb}" for ranks, verb in parts if ranks)

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s: {self.what}; {len(self.members)} take part (waited {self.cost:.1f} s)"


@dataclass
class NodeReport:
    """What one node did, and where its seconds went.

    Args:
        rank: The node's number.
        steps: Steps begun, skipped ones included.
        skipped: Steps that were skipped, because a gradient was not finite.
        gradients: Gradients computed.
        bytes_sent: Bytes that left the node, headers included.
        bytes_received: Bytes that came to the node, headers included.
        computing: Seconds spent computing: gradients, steps, and in a loop of your own whatever else it does.
        waiting: Seconds spent waiting for other nodes; on real machines waiting in a collective counts as talking.
        talking: Seconds spent while messages of this node's main task were on the wire.
        seconds: When the node was done, in seconds of the run.
        counts: What strategies, clips and codecs counted, by name, such as "clipped" or "exchanges".
        views: In an elastic run on real nodes, who came and who went, as ``ViewChange``.
    """

    rank: int
    steps: int = 0
    skipped: int = 0
    gradients: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    computing: float = 0.0
    waiting: float = 0.0
    talking: float = 0.0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    views: list[ViewChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._unread: dict[str, Tensor] = {}
        # Back from JSON.
        self.views = [view if isinstance(view, ViewChange) else ViewChange(**view) for view in self.views]

    def count(self, name: str, amount: int | Tensor) -> None:
        """Add to a named counter. What is on a device is added there, and read by ``settle``."""
        if isinstance(amount, Tensor):
            self._unread[name] = self._unread.get(name, 0) + amount
        else:
            self.counts[name] = self.counts.get(name, 0) + amount

    def settle(self) -> None:
        """Read the counters that were left on a device; one that never moved is not there."""
        for name, amount in self._unread.items():
            if amount:
                self.count(name, int(amount))
        self._unread.clear()

    @property
    def busy(self) -> float:
        """Share of the node's time spent computing."""
        return self.computing / self.seconds if self.seconds else 1.0


@dataclass
class Trace:
    """The record of one run: losses over time, what each node did, and the models.

    ``print(trace)`` says it in one line; ``to_frame``, ``to_csv``, ``to_parquet``, ``to_json`` and ``to_perfetto``
    export it, ``plot`` draws it.

    Args:
        strategy: The strategy, as a user would write it; or the name of the user's own function.
        rows: The average model at some moments; in a loop of your own, what node 0 logged.
        nodes: What each node did.
        models: Final parameters by rank: of all nodes, or under torchrun of this process.
        results: What a user's own function returned, by rank; empty for workloads.
        engine: Which way a simulation ran, "events" or "stacked"; "" for real runs.
        timeline: Who did what when, and who sent how much to whom. None where the run was not asked to keep it.

    Example:
        trace = fs.simulate(fs.LocalSGD(period=8), workload, nodes=4)
        print(trace.loss, trace.seconds, trace.bytes_sent)
        trace.to_csv("rows.csv")
    """

    strategy: str
    rows: list[Row]
    nodes: list[NodeReport]
    models: dict[int, Tensor]
    results: dict[int, Any] = field(default_factory=dict)
    engine: str = ""
    timeline: Timeline | None = None

    @property
    def seconds(self) -> float:
        """When the last node was done."""
        return max((node.seconds for node in self.nodes), default=0.0)

    @property
    def loss(self) -> float:
        """The last loss recorded; ValueError where none was."""
        if not self.rows:
            raise ValueError("this run recorded no loss\n  in a loop of your own, call node.log(loss.item())")
        return self.rows[-1].loss

    @property
    def spread(self) -> float:
        """How far the nodes' models lay from their average when that was last looked at, as in a row; else nan."""
        return next((row.spread for row in reversed(self.rows) if math.isfinite(row.spread)), math.nan)

    @property
    def drift(self) -> str | None:
        """What is to be said where the nodes drift apart while the loss of their average falls; else None."""
        from flockstep.drift import drift

        return drift(self.rows)

    @property
    def model(self) -> Tensor:
        """The average of the final models; ValueError in a trace that holds none."""
        if not self.models:
            raise ValueError(
                "this trace holds no models\n  files of traces never do: keep what launch or simulate returned"
            )
        return average_and_spread([self.models[rank] for rank in sorted(self.models)])[0]

    @property
    def bytes_sent(self) -> float:
        """Bytes sent, averaged over nodes."""
        return sum(node.bytes_sent for node in self.nodes) / max(1, len(self.nodes))

    @property
    def busy(self) -> float:
        """Share of time spent computing, averaged over nodes."""
        return sum(node.busy for node in self.nodes) / max(1, len(self.nodes))

    def time_to(self, loss: float) -> float | None:
        """Seconds until the loss was first at or below a target, by lines between rows; None if it never was."""
        for number, row in enumerate(self.rows):
            if row.loss <= loss:
                before = self.rows[number - 1] if number else row
                if not math.isfinite(before.loss) or before.loss <= row.loss or row.loss == loss:
                    return row.seconds
                passed = (before.loss - loss) / (before.loss - row.loss)
                return before.seconds + passed * (row.seconds - before.seconds)
        return None

    def to_frame(self) -> pd.DataFrame:
        """The rows as a pandas data frame."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install 'flockstep[frame]'") from error
        columns = list(Row.__dataclass_fields__)
        return pd.DataFrame([asdict(row) for row in self.rows], columns=columns)

    def to_json(self) -> str:
        """Everything but the models, as JSON."""
        rows, nodes = [asdict(row) for row in self.rows], [asdict(node) for node in self.nodes]
        timeline = None if self.timeline is None else self.timeline.to_plain()
        return json.dumps({"strategy": self.strategy, "rows": rows, "nodes": nodes, "timeline": timeline})

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """A trace back from ``to_json``, without models."""
        data = json.loads(text)
        rows = [Row(**row) for row in data["rows"]]
        timeline = None if data.get("timeline") is None else Timeline.from_plain(data["timeline"])
        return cls(data["strategy"], rows, [NodeReport(**node) for node in data["nodes"]], {}, timeline=timeline)

    def kept_timeline(self) -> Timeline:
        """The timeline; ValueError where none was kept."""
        if self.timeline is None:
            raise ValueError("this run kept no timeline\n  ask for one: simulate(..., timeline=True), or launch")
        return self.timeline

    def to_perfetto(self, path: str | Path) -> Path:
        """What every node did when, as a file that ui.perfetto.dev and chrome://tracing open; gives the path back."""
        from flockstep.exports import perfetto

        perfetto.write(self, path := _made(path))
        return path

    def to_csv(self, path: str | Path, table: str = "rows") -> Path:
        """One table of the trace: "rows", "nodes", and where a timeline was kept "spans" or "sent"."""
        from flockstep.exports import tables

        tables.write_csv(self, path := _made(path), table)
        return path

    def to_parquet(self, path: str | Path, table: str = "rows") -> Path:
        """One table of the trace, as ``to_csv`` has them."""
        from flockstep.exports import tables

        tables.write_parquet(self, path := _made(path), table)
        return path

    def plot(self, path: str | Path, against: str = "seconds") -> Path:
        """A picture of the loss against "seconds", "step" or "bytes"; gives the path back."""
        from flockstep.exports import picture

        return picture.plot([self], path, [against])

    @property
    def _steps(self) -> int:
        """Steps to the last loss. Without any: what loops of one's own have done only their nodes know."""
        return self.rows[-1].step if self.rows else max((node.steps for node in self.nodes), default=0)

    def _repr_html_(self) -> str:
        """The figures of ``print(trace)`` as a table, for notebooks."""
        figures = {
            "loss": f"{self.loss:.4g}" if self.rows else "none logged",
            "steps": f"{self._steps}",
            "nodes": f"{len(self.nodes)}",
            "seconds": f"{self.seconds:.4g}",
            "bytes sent per node": units.show_bytes(self.bytes_sent),
            "share of time computing": f"{self.busy:.0%}",
        }
        if len(self.nodes) > 1 and math.isfinite(self.spread):
            figures["spread"] = f"{self.spread:.3g}{', and growing' * (self.drift is not None)}"
        head = "".join(f"<th>{name}</th>" for name in figures)
        cells = "".join(f"<td>{figure}</td>" for figure in figures.values())
        # Names and texts of strategies are the user's own.
        caption = f"<caption>{html.escape(self.strategy)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody><tr>{cells}</tr></tbody></table>"

    def __str__(self) -> str:
        steps = self._steps
        learned = f"loss {self.loss:.4g} after {steps} steps" if self.rows else f"no loss logged in {steps} steps"
        apart = f", spread {self.spread:.3g}" if len(self.nodes) > 1 and math.isfinite(self.spread) else ""
        return (
            f"{self.strategy}: {learned} on {len(self.nodes)} node(s), "
            f"{self.seconds:.4g} s, {self.bytes_sent:.4g} bytes sent per node, {self.busy:.0%} of the time computing"
            f"{apart}{', and growing' * (self.drift is not None)}"
        )


def average_and_spread(models: Sequence[Tensor]) -> tuple[Tensor, float]:
    """The average of some models, and their mean squared distance from it."""
    average = models[0].clone()
    for model in models[1:]:
        average += model
    average /= len(models)
    return average, sum(float((model - average).square().sum()) for model in models) / len(models)


def _made(path: str | Path) -> Path:
    """A path whose folder is there."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
