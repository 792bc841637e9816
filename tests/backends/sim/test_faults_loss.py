"""Lost exchanges: how many, which half of them, and that nothing else changes."""

from dataclasses import dataclass

import pytest
import torch

import flockstep as fs
from flockstep.testing.law import note, read
from flockstep.workloads.convex import Quadratics

PROBLEM = Quadratics(dim=5)


@dataclass(frozen=True)
class AskAround:
    """At every step ask one peer drawn at random; go on without a reply that does not come."""

    async def run(self, node):
        def handler(peer, message):
            node.count("answered")
            return message

        node.answer("hello", handler)
        async for _ in node.steps():
            await node.step(await node.gradient(node.params))
            try:
                await node.ask(int(node.rng.choice(node.peers())), "hello", note(1.0))
            except fs.LostPeer:
                node.count("lost")


def run(nodes=3, steps=100, **rest):
    rest = {"compute": fs.Compute(step="1 s"), "timeout": 2, "start_skew": 0.0, **rest}
    return fs.simulate(AskAround(), PROBLEM, nodes=nodes, steps=steps, **rest)


def total(trace, name):
    return sum(node.counts.get(name, 0) for node in trace.nodes)


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_share_of_nothing_changes_nothing(nodes):
    without, none = run(nodes), run(nodes, faults=[fs.faults.MessageLoss(share=0)])
    assert without.to_json() == none.to_json()
    assert total(none, "answered") == nodes * 100


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_share_of_one_loses_all(nodes):
    trace = run(nodes, faults=[fs.faults.MessageLoss(share=1)])
    assert total(trace, "lost") == total(trace, "exchanges lost") == nodes * 100
    # Each step a second, each question its two seconds until the deadline.
    assert trace.seconds == 300.0
    # About half of them were answered before they were lost.
    assert 0.4 * nodes * 100 < total(trace, "answered") < 0.6 * nodes * 100


@pytest.mark.slow
def test_a_share_of_three_tenths():
    first, second = (run(faults=[fs.faults.MessageLoss(share=0.3)]) for _ in range(2))
    assert total(first, "lost") == total(first, "exchanges lost") == 88
    assert total(first, "answered") == 253
    assert first.to_json() == second.to_json()
    assert all(first.models[rank].equal(second.models[rank]) for rank in range(3))
    assert run(faults=[fs.faults.MessageLoss(share=0.3)], seed=1).to_json() != first.to_json()


def test_luck_in_asking_changes_no_other_number():
    """Who is asked, the data, and so the models: all as without losses."""
    without, lossy = run(), run(faults=[fs.faults.MessageLoss(share=0.3)])
    assert all(without.models[rank].equal(lossy.models[rank]) for rank in range(3))
    assert [row.loss for row in without.rows] == [row.loss for row in lossy.rows]


@pytest.mark.parametrize(
    ("start", "duration", "lost"),
    [(0, None, [1, 3, 5, 7]), (3, None, [3, 5, 7]), (3, 2, [3]), (3, 2.5, [3, 5]), (3, 0, []), (99, None, [])],
)
def test_a_loss_from_its_start_until_just_before_its_end(play, start, duration, lost):
    async def asks(node):
        for second in (1, 3, 5, 7):
            await node.gradient(node.params)
            try:
                await node.ask(0, "who", note(0.0))
                await node.gradient(node.params)
            except fs.LostPeer as error:
                assert "node 1 lost node 0 in ask('who'), no reply in 1 s" in str(error)
                node.say(second)

    async def answers(node):
        node.answer("who", lambda peer, message: message)

    stage = play(answers, asks, faults=[fs.faults.MessageLoss(share=1, start=start, duration=duration)], timeout=1)
    assert stage.of(1) == [(second + 1, second) for second in lost]


def test_two_losses_at_once_both_count():
    once, twice = (
        run(faults=[fs.faults.MessageLoss(share=0.3)]),
        run(faults=[fs.faults.MessageLoss(share=0.3), fs.faults.MessageLoss(share=0.3)]),
    )
    assert total(once, "lost") < total(twice, "lost") < 300


def test_streams_and_collectives_send_again_what_is_lost(play):
    async def part(node):
        node.send(1 - node.rank, note(float(node.rank)))
        node.say(read(await node.receive(1 - node.rank))[0])
        node.say(float((await node.mean(node.params + node.rank))[0]))

    stage = play(part, part, faults=[fs.faults.MessageLoss(share=1)])
    assert stage.of(0) == [(0, 1.0), (0, 0.5)]
    assert stage.of(1) == [(0, 0.0), (0, 0.5)]


def test_a_users_own_function_feels_it_too():
    def train():
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fs.join(model, optimizer, fs.LocalSGD(period=1)) as node:
            node.average_model()

    with pytest.raises(fs.LostPeer, match="no reply in 5 s"):
        fs.simulate(train, nodes=2, faults=[fs.faults.MessageLoss(share=1)], timeout=5)
