"""Laws of messages: send and receive, ask and answer."""

from __future__ import annotations

import torch

from flockstep.errors import FlockstepError, LostPeer
from flockstep.message import Message
from flockstep.node import Node
from flockstep.testing.law import Law, note, read


class MessagesAreCopied(Law):
    """What is sent is what was there at that moment; what comes is the receiver's own, in the order it was sent."""

    async def run(self, node: Node) -> None:
        if node.rank == 0:
            v = torch.zeros(8, dtype=torch.uint8)
            for k in range(3):
                v.fill_(k)
                for peer in node.peers():
                    node.send(peer, Message(v, "test", (8,), torch.uint8))
        else:
            for k in range(3):
                message = await node.receive(0)
                node.params[k] = float(message.data[0])
                message.data.fill_(99)

    def verify(self, seen: list[list[float]]) -> None:
        self.expect(all(numbers[:3] == [0.0, 1.0, 2.0] for numbers in seen[1:]), f"receivers saw {seen[1:]}")


class HandlersTakeTurns(Law):
    """Two handlers of one node never run at once, and the node does not stop for them."""

    async def run(self, node: Node) -> None:
        inside = 0

        def handler(peer: int, message: Message) -> Message:
            nonlocal inside
            inside += 1
            node.params[1] = max(float(node.params[1]), inside)
            before = float(node.params[0])
            node.params[0] = before + read(message)[0]
            inside -= 1
            return note(before)

        if node.rank == 0:
            node.answer("add", handler)
            # Busy until both have asked all they want: handlers must not need this node's attention.
            for peer in node.peers():
                await node.receive(peer)
        else:
            for _ in range(20):
                await node.ask(0, "add", note(1.0))
            node.send(0, note(0.0))

    def verify(self, seen: list[list[float]]) -> None:
        self.expect(seen[0][:2] == [40.0, 1.0], f"40 additions, one at a time; node 0 saw {seen[0][:2]}")


class EarlyQuestionsWait(Law):
    """Asking a topic without a handler yet waits until somebody does."""

    async def run(self, node: Node) -> None:
        if node.rank == 0:
            for _ in range(5):
                await node.gradient(node.params)
            node.answer("late", lambda peer, message: note(10.0 * peer))
        else:
            node.params[0] = read(await node.ask(0, "late", note(0.0)))[0]

    def verify(self, seen: list[list[float]]) -> None:
        self.expect([n[0] for n in seen] == [0.0, 10.0, 20.0], f"replies were {[n[0] for n in seen]}")


class UnansweredIsLost(Law):
    """A question nobody ever answers ends at the deadline, naming the peer."""

    nodes = 2
    timeout = 1.0

    async def run(self, node: Node) -> None:
        if node.rank == 1:
            try:
                await node.ask(0, "nobody", note(0.0))
            except LostPeer as error:
                node.params[0] = float("node 0" in str(error))
            node.send(0, note(0.0))
        else:
            # Still there, and still silent, when the deadline comes.
            await self.until_told(node)

    async def until_told(self, node: Node) -> None:
        """Wait longer than one deadline, in receives that each may time out."""
        for _ in range(10):
            try:
                await node.receive(1)
            except FlockstepError:
                continue
            return

    def verify(self, seen: list[list[float]]) -> None:
        self.expect(seen[1][0] == 1.0, "a question without an answer must raise LostPeer that names node 0")


class AnswersOutliveTheProgram(Law):
    """A node goes on answering after its program has returned, until all have."""

    async def run(self, node: Node) -> None:
        if node.rank == 0:
            node.answer("still there?", lambda peer, message: note(7.0))
            for peer in node.peers():
                node.send(peer, note(0.0))
            return
        await node.receive(0)
        for _ in range(5):
            await node.gradient(node.params)
        node.params[0] = read(await node.ask(0, "still there?", note(0.0)))[0]

    def verify(self, seen: list[list[float]]) -> None:
        self.expect([n[0] for n in seen[1:]] == [7.0, 7.0], f"replies were {[n[0] for n in seen[1:]]}")
