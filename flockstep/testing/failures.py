"""Laws of failure: nothing hangs, and whatever ends a run says who, where and why."""

from __future__ import annotations

import torch

from flockstep.errors import Deadlock, FlockstepError, Mismatch, NodeFailed
from flockstep.message import Message
from flockstep.node import Node
from flockstep.testing.law import Law, note


class ErrorsEndTheRun(Law):
    """An exception in one node ends all, and says where it was."""

    async def run(self, node: Node) -> None:
        if node.rank == 1:
            raise ZeroDivisionError("on purpose")
        await node.mean(node.params)

    def verify(self, seen: list[list[float]]) -> None:
        self.expect(False, "a program that raised must not end well")

    def verify_error(self, error: FlockstepError) -> None:
        self.expect(isinstance(error, NodeFailed), f"expected NodeFailed, got {error!r}")
        self.expect(error.rank == 1 and error.time is not None, f"rank {error.rank}, time {error.time}")
        self.expect("ZeroDivisionError: on purpose" in str(error), f"the cause must be told, got {error}")


class BackgroundErrorsEndTheRun(ErrorsEndTheRun):
    """An exception in a task nobody waits for ends the run as well."""

    async def run(self, node: Node) -> None:
        async def fail() -> None:
            await node.gradient(node.params)
            raise ZeroDivisionError("on purpose")

        if node.rank == 1:
            node.spawn(fail())
        await node.mean(node.params)
        await node.mean(node.params)


class AsideErrorsEndTheRun(ErrorsEndTheRun):
    """An exception in a call that was made aside ends the run as well."""

    async def run(self, node: Node) -> None:
        def fail() -> None:
            raise ZeroDivisionError("on purpose")

        if node.rank == 1:
            node.spawn(node.aside(fail))
        await node.mean(node.params)
        await node.mean(node.params)


class HandlerErrorsEndTheRun(ErrorsEndTheRun):
    """An exception in a handler ends the run as well."""

    async def run(self, node: Node) -> None:
        def fail(peer: int, message: Message) -> Message:
            raise ZeroDivisionError("on purpose")

        if node.rank == 1:
            node.answer("fail", fail)
        if node.rank == 2:
            await node.ask(1, "fail", note(0.0))
        await node.mean(node.params)


class EarlyReturnIsADeadlock(Law):
    """When a node returns while others wait for it in a mean, the run ends and names who waits where."""

    async def run(self, node: Node) -> None:
        await node.mean(node.params, "model")
        if node.rank != 1:
            await node.mean(node.params, "model")

    def verify(self, seen: list[list[float]]) -> None:
        self.expect(False, "nodes that wait for ever must not end well")

    def verify_error(self, error: FlockstepError) -> None:
        self.expect(isinstance(error, Deadlock), f"expected Deadlock, got {error!r}")
        self.expect("nodes 0, 2 wait in mean('model'), round 1" in str(error), f"got: {error}")
        self.expect("node 1 has returned" in str(error), f"got: {error}")


class UnlikeVectorsAreRefused(Law):
    """Vectors of different sizes cannot be averaged."""

    async def run(self, node: Node) -> None:
        await node.mean(torch.zeros(2 + node.rank // 2))

    def verify(self, seen: list[list[float]]) -> None:
        self.expect(False, "a mean of unlike vectors must not end well")

    def verify_error(self, error: FlockstepError) -> None:
        self.expect(isinstance(error, Mismatch), f"expected Mismatch, got {error!r}")
        self.expect("nodes 0 and 2 brought different vectors" in str(error), f"got: {error}")


class ChannelsKeepTheirShape(UnlikeVectorsAreRefused):
    """A channel carries one shape for the whole run."""

    async def run(self, node: Node) -> None:
        await node.mean(torch.zeros(2))
        await node.mean(torch.zeros(3))

    def verify_error(self, error: FlockstepError) -> None:
        self.expect(isinstance(error, Mismatch), f"expected Mismatch, got {error!r}")
        self.expect("give each shape a channel of its own" in str(error), f"got: {error}")


class NoAwaitInATorchContext(ErrorsEndTheRun):
    """An await inside no_grad would leak the mode into other nodes: it is refused."""

    async def run(self, node: Node) -> None:
        if node.rank == 1:
            with torch.no_grad():
                await node.gradient(node.params)
        await node.mean(node.params)

    def verify_error(self, error: FlockstepError) -> None:
        self.expect(isinstance(error, NodeFailed) and error.rank == 1, f"expected NodeFailed of node 1, got {error!r}")
        self.expect("await inside a torch context manager" in str(error), f"got: {error}")
