"""What every backend's nodes do about numbers that are not finite, before they leave the node.

A gradient counts as zero: a node's own step with it is skipped, and a mean gets nothing from this node. A model ends
the node that has it, by an error that says which node, after which step, and in which tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from flockstep.errors import Diverged
from flockstep.node import Node
from flockstep.vector import WIDE, is_finite


class Guarded(Node):
    """A node that lets nothing through that is not finite."""

    _fresh: tuple[Callable[[], Tensor | None], int] = (lambda: None, 0)
    """The last gradient that was looked at, and which version of it."""
    _length: Tensor | None = None
    """How long that one is, where it is known."""
    _fine: Tensor | None = None
    """On a GPU, whether it was finite: nobody has looked."""

    def guarded(self, g: Tensor) -> Tensor:
        """A fresh gradient, or zeros in its place if it is not finite; that is counted, as "not finite".

        On a GPU it is decided there and nobody looks, so that the host need not wait: ``refused`` stays
        False, and the optimizer takes a step with a gradient of zero.
        """
        self.refused, self._length = False, None
        if g.device.type != "cpu":
            fine = self._fine = self._holds(torch.linalg.vector_norm(g, ord=float("inf")).isfinite())
            self.count("not finite", ~fine)
            g.masked_fill_(~fine, 0.0)
        elif g.ndim == 1 and g.dtype in WIDE and bool((length := self._norm(g)).isfinite()):
            # One look for both: whoever clips need not read the whole vector again.
            self._length = length
        elif not self._holds(torch.tensor(is_finite(g))):
            self.refuse(g)
            self.refused = True
            self.count("not finite")
            g.zero_()
        self._fresh = weakref.ref(g), g._version
        return g

    def length(self, g: Tensor) -> Tensor:
        """The Euclidean norm; of a fresh gradient it is known."""
        return self._length if self._length is not None and self._is_fresh(g) else self._norm(g)

    def _holds(self, fine: Tensor) -> Tensor:
        """Whether it holds on all members of this node's island."""
        return fine

    def _is_fresh(self, v: Tensor) -> bool:
        gradient, version = self._fresh
        return v is gradient() and v._version == version

    def refuse(self, g: Tensor) -> None:
        """Told of a gradient that is not finite, before it becomes zero: for whoever can name it."""

    def or_skip(self, g: Tensor | None) -> Tensor | None:
        """What a step is to be taken with; None if that is nothing but a gradient that was refused."""
        return None if g is not None and self.refused and (g.is_meta or self._is_zero(g)) else g

    def _is_zero(self, g: Tensor) -> bool:
        return bool(self._holds(~g.any()))

    def check_finite(self, v: Tensor, what: str, *, step: int | None = None) -> None:
        """Diverged, if a vector that is about to leave this node is not finite; ``step`` is the last one it took."""
        # Of a fresh gradient it is known: there is no need to wait for a GPU again.
        if not self._is_fresh(v) and not is_finite(v):
            if not is_finite(self.params):
                # Whatever was made of it: that is where it began.
                what, v = "the model", self.params
            where = self.name_of_not_finite(v)
            raise Diverged(
                f"{what} of node {self.rank} is not finite after step {self.step_count if step is None else step}"
                + (f": {where}" if where else "")
                + "\n  it is neither sent nor saved; a lower learning rate, a clip or a longer warm-up may help",
                rank=self.rank,
            )

    def name_of_not_finite(self, v: Tensor) -> str | None:
        """Which tensor of a vector like the model is not finite, where tensors have names."""
        return None
