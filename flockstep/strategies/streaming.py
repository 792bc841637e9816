"""DiLoCo in pieces: a fragment of the model at a time, taken in a few steps later, so that links are never crowded.

State: W, the global model; x_i, which trains. Both are cut into fragments p = 0, 1, ... P-1.

    at step t = (p+1) H/P (mod H)       launch the mean of change_p = W_p - x_p
    ``delay`` steps later               W_p <- Nesterov(W_p, mean change_p);      x_p <- (1-alpha) W_p + alpha x_p

With ``delay=0`` a node waits for the mean at once. With ``alpha=0`` what a fragment has learned during the delay is
dropped, as in the paper; alpha keeps a share. When the run ends, what is under way is taken in, and what each fragment
has learned since is closed as one more round.

Douillard et al.: streaming DiLoCo with overlapping communication, 2025, arXiv 2501.18512.

Sends   every fragment's change once every ``period`` steps
Waits   for a mean that takes longer than ``delay`` steps
Keeps   W, the outer momentum, and the changes under way
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from flockstep import check
from flockstep.node import Node, Pending
from flockstep.parts.averages import Exact
from flockstep.parts.outer import Outer
from flockstep.strategy import Average, Mean


class _Fragment(NamedTuple):
    begin: int
    end: int
    mean: Mean


@dataclass(frozen=True, kw_only=True)
class StreamingDiLoCo:
    """A fragment at a time, and never wait if ``delay`` steps are enough for it."""

    own_gradients: ClassVar[bool] = True

    period: int = 100
    fragments: int = 4
    delay: int = 5
    alpha: float = 0.5
    outer_lr: float = 0.4
    outer_momentum: float = 0.9
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        if check.whole(self, "fragments", self.fragments) > self.period:
            raise ValueError(
                f"StreamingDiLoCo.fragments must be at most the period, {self.period}, got {self.fragments}"
            )
        if check.whole(self, "delay", self.delay, at_least=0) >= self.period:
            raise ValueError(f"StreamingDiLoCo.delay must be below the period, {self.period}, got {self.delay}")
        check.fraction(self, "alpha", self.alpha)
        check.positive(self, "outer_lr", self.outer_lr)
        if check.fraction(self, "outer_momentum", self.outer_momentum) >= 1:
            raise ValueError(f"StreamingDiLoCo.outer_momentum must be below 1, got {self.outer_momentum}")
        check.has(self, "average", self.average, "start", kind="an average such as Exact()")

    async def run(self, node: Node) -> None:
        """Local steps; at each, a fragment may leave and another arrive."""
        x, pieces = node.params, self._cut(node)
        world, change = node.keep("global", x.clone()), node.keep("changes under way", torch.zeros_like(x))
        outer = Outer(node, lr=self.outer_lr, momentum=self.outer_momentum)
        launched = node.keep("launched at", torch.full((len(pieces),), -1))
        flying: dict[int, Pending[Tensor]] = {}

        def launch(p: int) -> None:
            begin, end, mean = pieces[p]
            flying[p] = node.spawn(mean(change[begin:end]))

        async def land(p: int) -> None:
            begin, end, _ = pieces[p]
            outer.step(world, await flying.pop(p), begin)
            x[begin:end].mul_(self.alpha).add_(world[begin:end], alpha=1 - self.alpha)
            launched[p] = -1

        for p in (launched >= 0).nonzero().flatten().tolist():
            launch(p)
        t = node.step_count
        async for k in node.steps():
            await node.step(await node.gradient(x))
            t = k + 1
            for p, (begin, end, _) in enumerate(pieces):
                if (t - self._turn(p)) % self.period == 0:
                    torch.sub(world[begin:end], x[begin:end], out=change[begin:end])
                    launched[p] = t
                    launch(p)
                if p in flying and t - int(launched[p]) >= self.delay:
                    await land(p)
        for p, (begin, end, mean) in enumerate(pieces):
            if p in flying:
                await land(p)
            if t % self.period != self._turn(p) % self.period:
                outer.step(world, await mean(world[begin:end] - x[begin:end]), begin)
        x.copy_(world)

    def _turn(self, p: int) -> int:
        """After how many steps of a period a fragment leaves."""
        return (p + 1) * self.period // self.fragments

    def _cut(self, node: Node) -> list[_Fragment]:
        """Pieces of about equal size, between tensors where there are enough of them."""
        first = int(node.params.storage_offset())
        ends = [int(tensor.storage_offset()) - first + tensor.numel() for tensor in node.tensors(node.params)]
        count, size = node.params.numel(), self.fragments
        wanted = [count * p // size for p in range(1, size)]
        near = [min(ends, key=lambda end: abs(end - goal)) for goal in wanted]
        # A tensor that is larger than a fragment must be cut, wherever that is.
        edges = [0, *(near if len({0, *near, count}) == size + 1 else wanted), count]
        return [
            _Fragment(begin, end, self.average.start(node, f"fragment {p}"))
            for p, (begin, end) in enumerate(pairwise(edges))
        ]
