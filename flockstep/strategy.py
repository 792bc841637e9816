"""A strategy: hyper-parameters, and one coroutine that reads like the paper."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from flockstep.node import Node


@runtime_checkable
class Strategy(Protocol):
    """What a strategy is: a frozen dataclass of hyper-parameters with ``async def run(node)``, which every node runs.

    Some class attributes say more of it, all False unless given: ``one_sided``, that it uses no collectives, so that
    nodes may die, come back and come late; ``own_gradients``, that each node steps with its own gradient as it is;
    ``equal_steps``, that all nodes give their optimizers the same gradients; ``row_wise``, that all nodes can be
    simulated as one matrix. ``flockstep.testing.check_strategy`` checks one of your own.

    Example:
        @dataclass(frozen=True, kw_only=True)
        class Alone:
            async def run(self, node: fs.Node) -> None:
                async for _ in node.steps():
                    await node.step(await node.gradient(node.params))
    """

    async def run(self, node: Node) -> None:
        """Train: compute, step and talk, until ``node.steps()`` ends."""


class Clip(Protocol):
    """What a clip is: a function of a gradient and its node that bounds the gradient (see ``fs.clips``).

    Example:
        def halved(g: Tensor, node: fs.Node) -> Tensor:
            return g.div_(2)
    """

    def __call__(self, g: Tensor, node: Node) -> Tensor | None:
        """The gradient to step with, or None to skip a step whose gradient is not finite."""


class Mean(Protocol):
    """A started average: ``await mean(v)``."""

    async def __call__(self, v: Tensor) -> Tensor:
        """The mean of all nodes' vectors, or this average's approximation of it."""


class Average(Protocol):
    """What an average is: it turns every node's vector into (nearly) their mean (see ``fs.averages``).

    Example:
        mean = fs.averages.Exact().start(node)
    """

    def start(self, node: Node, channel: str = "model") -> Mean:
        """An average for one node and one channel, with whatever state it needs between rounds."""


def is_one_sided(strategy: object) -> bool:
    """Whether a strategy says ``one_sided = True``: no collectives, so that nodes may die, come back and come late."""
    return bool(getattr(strategy, "one_sided", False))


def steps_with_own_gradients(strategy: object) -> bool:
    """Whether it says ``own_gradients = True``: each node steps with its gradient as it is, unseen.

    In a loop of a user's own it is then left where it is, and what ``node.gradient`` gives has no numbers.
    """
    return bool(getattr(strategy, "own_gradients", False))


def takes_equal_steps(strategy: object) -> bool:
    """Whether it says ``equal_steps = True``: all nodes give their optimizers the same gradients, at every step."""
    return bool(getattr(strategy, "equal_steps", False))


def describe(part: object) -> str:
    """A strategy or part as a user would write it: ``CELGC(period=8)``, defaults left out."""
    if not is_dataclass(part) or isinstance(part, type):
        # Python's own repr of an object holds an address, which two processes would take for a difference.
        named = f"{type(part).__name__}()" if type(part).__repr__ is object.__repr__ else repr(part)
        return str(getattr(part, "__name__", None) or named)
    changed = [(f.name, getattr(part, f.name)) for f in fields(part) if getattr(part, f.name) != f.default]
    return f"{type(part).__name__}({', '.join(f'{name}={describe(value)}' for name, value in changed)})"
