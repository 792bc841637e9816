"""Data parallelism: every node brings a gradient, all take the same step.

    gbar = mean_i g_i;   x <- x - eta * clip(gbar)            every step

With ``clip=ClipStep(gamma=...)`` this is the "naive parallel clip" baseline of the CELGC paper (arXiv 2205.05040).

Sends   one gradient per step
Waits   for every node, every step
Keeps   nothing
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flockstep import check
from flockstep.averages.averages import Exact, Mixed
from flockstep.clips import NoClip
from flockstep.node import Node
from flockstep.strategy import Average, Clip


@dataclass(frozen=True, kw_only=True)
class DataParallel:
    """Data parallelism: gradients are averaged at every step, and every node takes the same step.

        gbar = mean_i g_i;   x <- x - eta * clip(gbar)

    With ``clip=fs.clips.ClipStep(gamma=...)`` it is the "naive parallel clip" baseline of the CELGC paper (Liu, Zhuang,
    Lei, Liao, NeurIPS 2022, arXiv 2205.05040).

    Args:
        clip: What bounds a gradient (see ``fs.clips``). By default nothing. It acts after the mean.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries gradients.

    Example:
        with fs.join(model, optimizer, fs.DataParallel(clip=fs.clips.ClipNorm(max_norm=1.0))):
            train(model, optimizer)  # your own loop
    """

    row_wise: ClassVar[bool] = True

    clip: Clip = NoClip()
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.has(self, "clip", self.clip, "__call__", kind="a clip such as ClipNorm(max_norm=1.0)")
        check.has(self, "average", self.average, "start", kind="an average such as Exact()")

    @property
    def equal_steps(self) -> bool:
        """All nodes step with the same vector, unless it is averaged with neighbours only."""
        return not isinstance(self.average, Mixed)

    async def run(self, node: Node) -> None:
        """Compute, average, step."""
        mean = self.average.start(node, "gradient")
        async for _ in node.steps():
            g = await mean(await node.gradient(node.params))
            await node.step(self.clip(g, node))
