"""One-sided runs on real processes: nobody waits for everybody, and the death of any node ends nothing."""

import os
import signal
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.codecs.raw import Raw
from flockstep.workloads.convex import Quadratics

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Pull:
    """Every few steps, go half the way to the model of somebody who lives."""

    one_sided = True
    period: int = 2
    killed: int | None = None
    """Who kills itself, without a word, after ten steps."""
    until_lost: bool = False
    """Whether the others go on until they have seen it die."""

    async def run(self, node):
        x = node.params
        node.answer("model", lambda peer, message: Raw().encode(x, np.random.default_rng(0)))
        nothing = Raw().encode(torch.zeros(1), np.random.default_rng(0))
        lost = 0
        async for k in node.steps():
            if node.rank == self.killed and k == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            await node.step(await node.gradient(x))
            while k % self.period == 0 and node.peers():
                peer = int(node.rng.choice(node.peers()))
                try:
                    theirs = Raw().decode(await node.ask(peer, "model", nothing), x)
                except fs.LostPeer as error:
                    assert f"node {peer}" in str(error)
                    node.count("lost")
                    lost += 1
                    continue
                x.add_(theirs - x, alpha=0.5)
                if k < 10 or self.killed is None or not self.until_lost or self.killed not in node.peers():
                    break


def quadratics():
    return Quadratics(dim=6, heterogeneity=0.1, noise=0.01, condition=1.0)


def has_learned(trace, nodes):
    """Of the models at the end: what was recorded depends on how far the slowest was by then."""
    problem = quadratics().shard(0, nodes)
    return problem.loss(torch.stack(list(trace.models.values())).mean(0)) < problem.loss(problem.start()) / 2


def run(strategy, nodes, **options):
    optimizer = partial(torch.optim.SGD, lr=0.1)
    return fs.launch(strategy, quadratics(), nodes=nodes, steps=40, optimizer=optimizer, timeout=20, **options)


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("on", ["processes", "threads"])
def test_a_one_sided_strategy_trains_without_collectives(nodes, on):
    trace = run(Pull(), nodes, on=on)
    assert [node.steps for node in trace.nodes] == [40] * nodes
    assert has_learned(trace, nodes)


@pytest.mark.parametrize("killed", [0, 2])
def test_the_death_of_a_node_ends_nothing(killed):
    trace = run(Pull(killed=killed, until_lost=True), 4)
    assert sorted(trace.models) == [rank for rank in range(4) if rank != killed]
    assert all(node.steps == 40 for node in trace.nodes)
    assert has_learned(trace, 4)


def test_a_collective_in_a_one_sided_run_is_refused_by_name():
    class Wrong:
        one_sided = True

        async def run(self, node):
            await node.mean(node.params)

    with pytest.raises(fs.FlockstepError, match="called mean in a one-sided run"):
        run(Wrong(), 2)


def joined(steps):
    torch.manual_seed(fs.rank())
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(32, 3)
    with fs.join(model, optimizer, Pull(period=1)) as node:
        for _ in range(steps):
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
        # On a busy machine one may be done before another has begun.
        node.meet()
        return node.report().counts, node.average_model().weight.flatten().tolist()


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_the_users_own_loop_comes_in_and_leaves_one_by_one(nodes):
    trace = fs.launch(partial(joined, 30), nodes=nodes, timeout=20)
    assert [node.steps for node in trace.nodes] == [30] * nodes
    average = [weights for _, weights in trace.results.values()]
    torch.testing.assert_close(torch.tensor(average), torch.ones(nodes, 3), atol=0.2, rtol=0)


def test_the_users_own_loop_on_virtual_nodes_goes_on_without_the_dead():
    compute = fs.Compute(step="10 ms", spread=0.2)
    faults = [fs.faults.Crash(node=1, at="150 ms")]
    trace = fs.simulate(partial(joined, 30), nodes=3, compute=compute, faults=faults)
    assert [node.steps for node in trace.nodes if node.rank != 1] == [30, 30]
    assert sorted(trace.results) == [0, 2]
    for _, average in (trace.results[0], trace.results[2]):
        torch.testing.assert_close(torch.tensor(average), torch.ones(3), atol=0.3, rtol=0)
