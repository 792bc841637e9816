"""Laws of one-sided programs: nobody waits for everybody."""

from __future__ import annotations

import torch

from flockstep.errors import LostPeer
from flockstep.message import Message
from flockstep.node import Node
from flockstep.testing.law import Law, note, read


class EveryoneElseIsAPeer(Law):
    """At the beginning the peers of a node are all but itself."""

    one_sided = True

    async def run(self, node: Node) -> None:
        for peer in node.peers():
            node.params[peer] = 1.0

    def verify(self, seen: list[list[float]]) -> None:
        for rank, page in enumerate(seen):
            expected = [float(other != rank) for other in range(self.nodes)]
            self.expect(page[: self.nodes] == expected, f"node {rank} saw peers {page[: self.nodes]}")


class BodiesOfAnyLength(Law):
    """What is asked and what is replied arrive as they were, whether empty, odd or long."""

    one_sided = True
    # Virtual networks may be slow ones.
    timeout = 3600.0
    lengths = (0, 1, 7, 4096, 100_003, 3_000_001)

    async def run(self, node: Node) -> None:
        node.answer("echo", lambda peer, message: message)
        right = 0
        for peer in node.peers():
            for length in self.lengths:
                data = (torch.arange(length) % 251 + node.rank).to(torch.uint8)
                reply = await node.ask(peer, "echo", Message(data, "Raw", (length,), torch.uint8))
                same = torch.equal(reply.data, data) and (reply.codec, reply.shape) == ("Raw", (length,))
                right += same and reply.dtype == torch.uint8
        node.params[0] = right

    def verify(self, seen: list[list[float]]) -> None:
        all_right = float(len(self.lengths) * (self.nodes - 1))
        self.expect([page[0] for page in seen] == [all_right] * self.nodes, f"echoes came as {[p[0] for p in seen]}")


class RepliesAreOnesOwn(Law):
    """Changing a reply, or what a handler was given, changes nothing on the other side."""

    one_sided = True
    nodes = 2

    async def run(self, node: Node) -> None:
        mine = note(1.0, 2.0)

        def handler(peer: int, message: Message) -> Message:
            message.data.zero_()
            return mine

        node.answer("mine", handler)
        other = 1 - node.rank
        question = note(5.0)
        (await node.ask(other, "mine", question)).data.zero_()
        again = read(await node.ask(other, "mine", question))
        node.params[:3] = torch.tensor([*again, *read(question)])

    def verify(self, seen: list[list[float]]) -> None:
        self.expect([page[:3] for page in seen] == [[1.0, 2.0, 5.0]] * 2, f"nodes saw {[page[:3] for page in seen]}")


class AllAskAllAtOnce(Law):
    """Questions in the background, to everyone at the same time, each get their own reply."""

    one_sided = True
    nodes = 5

    async def run(self, node: Node) -> None:
        node.answer("add", lambda peer, message: note(read(message)[0] + 100.0 * node.rank + peer))

        async def ask(peer: int, k: int) -> float:
            return read(await node.ask(peer, "add", note(1000.0 * k)))[0]

        asked = [(peer, k, node.spawn(ask(peer, k))) for peer in node.peers() for k in range(6)]
        for peer, k, pending in asked:
            node.params[0] += float(await pending == 1000.0 * k + 100.0 * peer + node.rank)

    def verify(self, seen: list[list[float]]) -> None:
        self.expect([page[0] for page in seen] == [24.0] * 5, f"right replies: {[page[0] for page in seen]}")


class EachAtItsOwnPace(Law):
    """Nodes that take different numbers of turns still answer each other to the end, and leave together."""

    one_sided = True

    async def run(self, node: Node) -> None:
        node.answer("turns", lambda peer, message: note(float(node.params[0])))
        for _ in range(1 + 3 * node.rank):
            await node.gradient(node.params)
            node.params[0] += 1
            for peer in node.peers():
                try:
                    await node.ask(peer, "turns", note(0.0))
                except LostPeer:
                    # Nobody dies here, and whoever has returned still answers.
                    node.params[1] += 1

    def verify(self, seen: list[list[float]]) -> None:
        self.expect([page[0] for page in seen] == [1.0, 4.0, 7.0], f"turns were {[page[0] for page in seen]}")
        self.expect(all(page[1] == 0.0 for page in seen), f"peers lost: {[page[1] for page in seen]}")
