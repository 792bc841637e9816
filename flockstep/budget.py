"""Work that all nodes share: so many steps or samples together, taken by whoever is there and able.

Nodes that wait for each other take equal shares, and each knows by itself how far all are. Nodes that step on their
own keep a ledger: what every node has spent, as far as this one has heard. Two ledgers that meet take the larger entry
of each, so that news can come late, twice or in any order. The nearer the end, the more often a node asks; so all stop
within a few steps of the budget, never before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from flockstep import check
from flockstep.errors import LostPeer
from flockstep.message import Message
from flockstep.node import Node, Pending

_TOPIC = "flockstep budget"
_ROUNDS = 16
"""A node asks whenever all have spent about this part of what is left: a question takes a processor as long as a small
step does."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Work of all nodes together: a number of steps, or of samples.

    The nodes that are there share it as they go, and stop within a few steps of its end, never before it.

    Args:
        steps: Steps of all nodes together. None where ``samples`` are given.
        samples: Samples of all nodes together. None where ``steps`` are given.
        batch: Samples that one step of this node takes; given with ``samples``, and only then.

    Example:
        with fs.join(model, optimizer, fs.Swarm(), budget=fs.Budget(samples=60_000, batch=32)) as node:
            for inputs, targets in node.batches(loader):
                step(inputs, targets)  # one step of your own loop
    """

    steps: int | None = None
    samples: int | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.samples is None):
            raise ValueError("Budget needs steps or samples, and not both")
        if (self.samples is None) != (self.batch is None):
            raise ValueError("Budget.batch says how many samples a step takes; give it with samples, and only then")
        for name in ("steps", "samples", "batch"):
            if getattr(self, name) is not None:
                check.whole(self, name, getattr(self, name))

    @property
    def total(self) -> int:
        """What there is to spend."""
        return self.steps or self.samples or 0

    @property
    def each(self) -> int:
        """What one step of this node costs."""
        return self.batch or 1

    def steps_of_each(self, size: int) -> int:
        """How many steps each of so many equal nodes takes."""
        return -(-self.total // (size * self.each))

    def describe(self, *, together: bool) -> str:
        """What nodes must have in common: to stay in step, the batch as well."""
        unit = "steps" if self.samples is None else "samples"
        return f"{self.total} {unit} in all" + (f", {self.each} a step" if together else "")


class Ledger:
    """One node's view of what all have spent. Without a lock: entries only grow, and what is lost is heard again."""

    def __init__(self, node: Node, budget: Budget, *, together: bool) -> None:
        self._node, self._budget, self._together = node, budget, together
        self._others: Mapping[int, int] = {}
        self._taken = self._before = self._asked_at = 0
        self._asking: Pending[None] | None = None
        # Not the strategy's own stream: counting must not change what it draws.
        self._rng = np.random.default_rng(node.rank)
        if not together:
            node.answer(_TOPIC, self._answer)

    @property
    def spent(self) -> int:
        """By all nodes, as far as this one knows; at most what is true."""
        if self._together:
            return self._own * self._node.size
        return self._own + sum(self._others.values())

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return min(1.0, self.spent / self._budget.total)

    def entries(self) -> dict[int, int]:
        """What each node has spent, by rank."""
        if self._together:
            return dict.fromkeys(range(self._node.size), self._own)
        return {**self._others, self._node.rank: self._own}

    def resume(self, entries: Mapping[int, int]) -> None:
        """Go on from what a checkpoint holds, of as many nodes as there were then."""
        if self._together:
            self._before = sum(entries.values()) // self._node.size
        else:
            self.learn(entries)

    def learn(self, entries: Mapping[int, int]) -> None:
        """Take the larger of what was known and what is heard."""
        known = dict(self._others)
        for rank, spent in entries.items():
            if rank != self._node.rank:
                known[rank] = max(spent, known.get(rank, 0))
            elif spent > self._own:
                # More than this node knows of: it was here before, and what it spent then stays spent.
                self._before = spent
        self._others = known

    def step(self) -> None:
        """This node takes a step."""
        self._taken += self._budget.each
        idle = self._asking is None or self._asking.done
        if not self._together and idle and (peers := self._node.peers()):
            left = self._budget.total - self.spent
            if self._taken - self._asked_at >= left / (_ROUNDS * (1 + len(peers))):
                self._asked_at = self._taken
                self._asking = self._node.spawn(self.ask(int(self._rng.choice(peers))))

    async def ask(self, peer: int) -> None:
        """Bring two ledgers together; whoever is lost is asked another time."""
        with suppress(LostPeer):
            self.learn(_read(await self._node.ask(peer, _TOPIC, _written(self.entries()))))

    def _answer(self, peer: int, message: Message) -> Message:
        self.learn(_read(message))
        return _written(self.entries())

    @property
    def _own(self) -> int:
        return self._before + self._taken


def _written(entries: Mapping[int, int]) -> Message:
    table = torch.tensor(sorted(entries.items()), dtype=torch.int64)
    return Message(table.view(-1).view(torch.uint8), "budget", tuple(table.shape), torch.int64)


def _read(message: Message) -> dict[int, int]:
    if message.codec != "budget" or message.data.numel() % 16:
        raise ValueError(f"a ledger cannot be read from {message.data.numel()} bytes of {message.codec}")
    # A copy starts at an aligned address, which a slice of a network buffer need not.
    rows: list[list[int]] = message.data.clone().view(torch.int64).view(-1, 2).tolist()
    if any(rank < 0 or spent < 0 for rank, spent in rows):
        raise ValueError("a ledger with negative entries makes no sense")
    return dict(rows)  # type: ignore[arg-type]
