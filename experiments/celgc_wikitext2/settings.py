"""What is compared, and at which sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import flockstep as fs

NODES = 8
TRAINING_TOKENS = 2_088_628
BASELINE = "parallel clip"
LONGEST = "CELGC I=16"

METHODS: Mapping[str, Callable[[float], fs.Strategy]] = {
    BASELINE: lambda gamma: fs.DataParallel(clip=fs.clips.ClipStep(gamma=gamma)),
    "CELGC I=4": lambda gamma: fs.CELGC(period=4, gamma=gamma),
    LONGEST: lambda gamma: fs.CELGC(period=16, gamma=gamma),
}

# The authors' gamma / eta = 7.5 / 30: gradients longer than this are cut, at every learning rate of the grid.
CLIP_AT = 0.25


@dataclass(frozen=True, kw_only=True)
class Size:
    """One model with the data, the grid and the hardware it is trained on."""

    name: str
    model: Mapping[str, Any]
    """Arguments of WordLSTM."""
    steps: int
    rates: tuple[float, ...]
    """The grid of learning rates, the same for every method; the likeliest first, in case time runs out."""
    decay: float
    """The last part of the steps, in which the rate goes down to zero; 0 holds it."""
    record_every: int
    """Odd, so that records fall into every phase of a round, not only where the nodes have just met."""
    curve_windows: int
    final_windows: int
    bandwidth: str
    latency: str
    gradient_time: str
    device: str = "cpu"
    tf32: bool = False
    workers: int = 2
    seed: int = 0

    @property
    def epochs(self) -> float:
        """How often the text was read, all nodes together."""
        return self.steps * self.tokens_per_step / TRAINING_TOKENS

    @property
    def tokens_per_step(self) -> int:
        """Tokens all nodes together learn from in a step."""
        return NODES * int(self.model["batch"]) * int(self.model["length"])

    @property
    def network(self) -> fs.Network:
        """The wires between the nodes: for the column of seconds only."""
        return fs.Network(bandwidth=self.bandwidth, latency=self.latency)

    def quick(self) -> Size:
        """The same on less."""
        return replace(self, steps=4, rates=self.rates[:1], record_every=3, curve_windows=4, final_windows=8)


SMALL = Size(
    name="small",
    model={"embedding": 64, "hidden": 128, "layers": 1, "tied": True, "batch": 4, "length": 20},
    steps=512,
    rates=(20.0, 40.0, 10.0),
    decay=0.5,
    record_every=35,
    curve_windows=128,
    final_windows=2048,
    bandwidth="100 Mbit/s",
    latency="20 ms",
    gradient_time="35 ms",
)

PAPER = Size(
    name="paper",
    model={"embedding": 400, "hidden": 1150, "layers": 3, "tied": True, "batch": 10, "length": 35},
    steps=1056,
    rates=(30.0, 10.0, 20.0),
    decay=0.0,
    record_every=45,
    curve_windows=512,
    final_windows=6218,
    bandwidth="10 Gbit/s",
    latency="100 us",
    gradient_time="11.5 ms",
    device="cuda",
    tf32=True,
    workers=9,
)

SIZES = {size.name: size for size in (SMALL, PAPER)}
