"""Laws of collectives, of background work, and of what is a node's own."""

from __future__ import annotations

import torch

from flockstep.node import Node, stream
from flockstep.testing.law import Law, Page, Run, note, read


class MeansAreMeans(Law):
    """A mean is everyone's mean, round after round, and each node's copy is its own."""

    async def run(self, node: Node) -> None:
        for round in range(3):
            mean = await node.mean(torch.full((2,), float(node.rank + round), dtype=torch.float64))
            node.params[round] = mean[0]
            mean.fill_(-1.0)

    def verify(self, seen: list[list[float]]) -> None:
        for numbers in seen:
            self.expect(
                numbers[:3] == [1.0, 2.0, 3.0], f"means of 0, 1, 2 and on are 1, 2, 3; a node saw {numbers[:3]}"
            )


class AloneIsAlone(MeansAreMeans):
    """With one node, a mean is the node's own vector."""

    nodes = 1

    def verify(self, seen: list[list[float]]) -> None:
        self.expect(seen[0][:3] == [0.0, 1.0, 2.0], f"one node's means are its own 0, 1, 2, not {seen[0][:3]}")


class ChannelsAreApart(Law):
    """Channels may be used in any order: the k-th on a channel meets the k-th on that channel."""

    async def run(self, node: Node) -> None:
        one, two = torch.full((1,), 1.0), torch.full((3,), 10.0 * node.rank)
        if node.rank == 0:
            first, second = node.spawn(node.mean(one, "one")), node.spawn(node.mean(two, "two"))
        else:
            second, first = node.spawn(node.mean(two, "two")), node.spawn(node.mean(one, "one"))
        node.params[0], node.params[1] = (await first)[0], (await second)[0]

    def verify(self, seen: list[list[float]]) -> None:
        self.expect(all(numbers[:2] == [1.0, 10.0] for numbers in seen), f"nodes saw {[n[:2] for n in seen]}")


class SpawnDoesNotWait(Law):
    """A spawned mean goes on in the background, with the vector as it was when it was spawned."""

    async def run(self, node: Node) -> None:
        v = torch.full((1,), 6.0 * node.rank, dtype=torch.float64)
        if node.rank == 0:
            pending = node.spawn(node.mean(v))
            v.fill_(100.0)
            for peer in node.peers():
                node.send(peer, note(1.0))
            node.params[0] = (await pending)[0]
            node.params[1] = float(pending.done)
        else:
            # Without the message there is no mean: a spawn that waited would wait for ever.
            await node.receive(0)
            node.params[0] = (await node.mean(v))[0]

    def verify(self, seen: list[list[float]]) -> None:
        self.expect(all(numbers[0] == 6.0 for numbers in seen), f"the mean of 0, 6, 12 is 6; nodes saw {seen}")
        self.expect(seen[0][1] == 1.0, "what was awaited is done")


class AsideGivesWhatTheCallGives(Law):
    """A call that takes a while gives its result, in the node's own task and in one that was spawned."""

    nodes = 2

    async def run(self, node: Node) -> None:
        async def beside() -> float:
            return await node.aside(lambda: 10.0 + node.rank) + float((await node.mean(torch.ones(1)))[0])

        pending = node.spawn(beside())
        node.params[0] = await node.aside(lambda: 1.0 + node.rank)
        node.params[1] = await pending

    def verify(self, seen: list[list[float]]) -> None:
        self.expect([numbers[:2] for numbers in seen] == [[1.0, 11.0], [2.0, 12.0]], f"nodes saw {seen}")


class ExchangesReachAll(Law):
    """In an exchange, node j gets from node i what i meant for j."""

    async def run(self, node: Node) -> None:
        received = await node.exchange([note(10.0 * node.rank + to) for to in range(node.size)])
        for sender, message in enumerate(received):
            node.params[sender] = read(message)[0]

    def verify(self, seen: list[list[float]]) -> None:
        for rank, numbers in enumerate(seen):
            self.expect(numbers[:3] == [rank, 10.0 + rank, 20.0 + rank], f"node {rank} got {numbers[:3]}")


class SkippedStepsCount(Law):
    """A step with None leaves the model alone and is counted as a step all the same."""

    nodes = 2
    steps = 3

    async def run(self, node: Node) -> None:
        async for k in node.steps():
            await node.step(None if k == 1 else torch.ones_like(node.params))

    def check(self, run: Run) -> None:
        trace = run(self, Page(), nodes=self.nodes, steps=self.steps, timeout=self.timeout)
        for rank, report in enumerate(trace.nodes):
            self.expect((report.steps, report.skipped) == (3, 1), f"steps {report.steps}, skipped {report.skipped}")
            self.expect(abs(float(trace.models[rank][0]) + 0.2) < 1e-12, "two steps of 0.1 were to be taken")


class StreamsAreApart(Law):
    """What a strategy draws does not change the data, and no two nodes have the same data."""

    steps = 2

    async def run(self, node: Node) -> None:
        async for k in node.steps():
            node.params[k] = (await node.gradient(node.params))[0]
            node.params[2 + k] = node.rng.random()

    def verify(self, seen: list[list[float]]) -> None:
        for rank, numbers in enumerate(seen):
            data, codec = stream(0, rank, "data"), stream(0, rank, "codec")
            expected = [data.random(), data.random(), codec.random(), codec.random()]
            self.expect(numbers[:4] == expected, f"node {rank} drew {numbers[:4]}, its streams hold {expected}")


class KeepGivesBack(Law):
    """``keep`` gives the tensor back, to be used as before."""

    async def run(self, node: Node) -> None:
        kept = node.keep("velocity", torch.full((1,), 3.0))
        node.params[0] = kept[0]

    def verify(self, seen: list[list[float]]) -> None:
        self.expect(all(n[0] == 3.0 for n in seen), f"nodes saw {[n[0] for n in seen]}")
