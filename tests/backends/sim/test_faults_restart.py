"""Nodes that crash and come back: who they are then, what is left of what they were, and what others see of it."""

from dataclasses import dataclass

import pytest
import torch

import flockstep as fs
from flockstep.message import HEADER_BYTES
from flockstep.testing.law import Page, note, read
from flockstep.workloads.convex import Quadratics

PROBLEM = Quadratics(dim=5)


def body(nbytes):
    return fs.Message(torch.zeros(nbytes - HEADER_BYTES, dtype=torch.uint8), "test", (), torch.float64)


async def answers(node):
    """Answers with its incarnation as long as it lives."""
    node.say(f"born {node.incarnation}")
    node.answer("who", lambda peer, message: note(float(node.incarnation)))
    for _ in range(3):
        await node.gradient(node.params)


async def asks(node, peer=0, times=8):
    for _ in range(times):
        try:
            node.say(read(await node.ask(peer, "who", note(0.0)))[0])
        except fs.LostPeer as error:
            assert f"lost node {peer} in ask('who')" in str(error)
            node.say("lost")
        await node.gradient(node.params)


def test_who_comes_back_answers_again(play):
    stage = play(answers, asks, faults=[fs.faults.Crash(node=0, at=2, back_after=3)])
    # At the moment of the crash it is gone, at the moment of its return it is there.
    expected = [0.0, 0.0, "lost", "lost", "lost", 1.0, 1.0, 1.0]
    assert stage.of(1) == list(enumerate(expected))
    assert stage.of(0) == [(0, "born 0"), (5, "born 1")]
    assert stage.trace.nodes[0].counts == {"restarts": 1}
    assert stage.trace.nodes[0].seconds == 8.0


def test_it_may_crash_again_and_a_crash_while_it_is_down_does_nothing(play):
    times = [(1, 2), (2, None), (4, 1), (6, None)]
    stage = play(answers, asks, faults=[fs.faults.Crash(node=0, at=at, back_after=back) for at, back in times])
    assert [what for _, what in stage.of(1)] == [0.0, "lost", "lost", 1.0, "lost", 2.0, "lost", "lost"]
    assert [time for time, _ in stage.of(0)] == [0, 3, 5]
    assert set(stage.trace.models) == {1}


def test_back_at_once(play):
    stage = play(answers, asks, faults=[fs.faults.Crash(node=0, at=2, back_after=0)])
    assert [what for _, what in stage.of(1)] == [0.0, 0.0, *[1.0] * 6]


def test_a_question_under_way_at_the_crash_is_lost_at_once_and_another_peer_is_asked(play):
    async def gives(node):
        node.answer("model", lambda peer, message: body(1_000_000))

    async def takes(node):
        for peer in (0, 1):
            try:
                await node.ask(peer, "model", note(0.0))
                node.say(f"model of {peer}")
                return
            except fs.LostPeer as error:
                assert "node 2 lost node 0 in ask('model')" in str(error)
                assert error.rank == 2
                node.say("lost")

    network = fs.Network(bandwidth="8 Mbit/s")
    for back_after in (None, 1):
        stage = play(
            gives, gives, takes, network=network, faults=[fs.faults.Crash(node=0, at=0.5, back_after=back_after)]
        )
        (lost, _), (end, what) = stage.of(2)
        assert (lost, what) == (0.5, "model of 1")
        assert end == pytest.approx(1.5, abs=1e-3)


def test_old_messages_are_dropped_in_both_directions_and_new_ones_come_in_order(play):
    async def back(node):
        if node.incarnation == 0:
            node.send(1, note(1.0))  # arrives, and waits to be read
            await node.gradient(node.params)
            node.send(1, body(1_000_000))  # a second long: it dies half way
            await node.receive(1)  # arrives before the crash, and is read by nobody after it
        else:
            for k in (2.0, 3.0):
                node.send(1, note(k))
            node.say(read(await node.receive(1))[0])

    async def other(node):
        await node.gradient(node.params)
        node.send(0, note(10.0))
        node.send(0, note(11.0))
        await node.gradient(node.params)  # 2 s: node 0 died at 1.5 s
        node.send(0, note(12.0))  # to nobody
        for _ in range(2):
            await node.gradient(node.params)  # 4 s: it came back at 3 s
        node.send(0, note(13.0))
        for _ in range(3):
            node.say(read(await node.receive(0))[0])

    network = fs.Network(bandwidth="8 Mbit/s")
    stage = play(back, other, network=network, faults=[fs.faults.Crash(node=0, at=1.5, back_after=1.5)])
    assert [what for _, what in stage.of(1)] == [1.0, 2.0, 3.0]
    assert [what for _, what in stage.of(0)] == [13.0]


def test_what_moved_to_or_from_the_dead_leaves_room_on_the_links(play):
    async def sends(node):
        node.send(2 if node.rank == 0 else 0, body(1_000_000))
        if node.rank == 1:
            node.send(3, body(1_000_000))

    async def receives(node):
        await node.receive(node.rank - 2)
        node.say("there")

    async def gives_up(node):
        with pytest.raises(fs.LostPeer):
            await node.receive(0)
        node.say("lost")

    network = fs.Network(bandwidth="8 Mbit/s")
    stage = play(sends, sends, gives_up, receives, network=network, faults=[fs.faults.Crash(node=0, at=1)])
    # Node 1's uplink carried half a megabyte each to nodes 0 and 3 by then.
    assert stage.of(2) == [(1, "lost")]
    assert stage.of(3) == [(1.5, "there")]
    assert [node.bytes_received for node in stage.trace.nodes] == [0, 0, 0, 1_000_000]


def test_who_waits_for_a_message_of_the_dead_is_told_and_may_wait_again(play):
    async def back(node):
        if node.incarnation == 0:
            await node.receive(1)
        node.send(1, note(5.0))

    async def other(node):
        with pytest.raises(fs.LostPeer, match="node 1 lost node 0 in receive"):
            await node.receive(0)
        node.say("lost")
        with pytest.raises(fs.LostPeer):
            await node.receive(0)
        for _ in range(3):
            await node.gradient(node.params)
        node.say(read(await node.receive(0))[0])
        node.send(0, note(0.0))

    stage = play(back, other, faults=[fs.faults.Crash(node=0, at=1, back_after=2)])
    assert stage.of(1) == [(1, "lost"), (4, 5.0)]


def test_the_run_waits_for_who_is_still_to_come_but_not_for_a_crash(play):
    async def short(node):
        await node.gradient(node.params)
        node.say(node.incarnation)

    assert play(short, short, faults=[fs.faults.Crash(node=0, at=0.5, back_after=10)]).of(0) == [(11.5, 1)]
    assert play(short, faults=[fs.faults.Crash(node=0, at=0.5, back_after=10)]).of(0) == [(11.5, 1)]
    assert play(short, short, faults=[fs.faults.Crash(node=0, at=5, back_after=10)]).of(0) == [(1, 0)]


def test_a_node_that_had_returned_begins_anew_as_well(play):
    async def short(node):
        node.say(node.incarnation)

    stage = play(short, asks_forever, faults=[fs.faults.Crash(node=0, at=2, back_after=1)])
    assert stage.of(0) == [(0, 0), (3, 1)]


async def asks_forever(node):
    for _ in range(5):
        await node.gradient(node.params)


def test_a_pause_at_the_return_holds_it_back(play):
    faults = [fs.faults.Crash(node=0, at=1, back_after=1), fs.faults.Pause(node=0, start=1.5, duration=4)]
    assert play(answers, asks_forever, faults=faults).of(0)[1] == (5.5, "born 1")


@dataclass(frozen=True)
class Pull:
    """At every step ask the next node for its model and take the middle; go on without one that is lost."""

    async def run(self, node):
        codec = fs.codecs.Raw()
        node.answer("model", lambda peer, message: codec.encode(node.params, node.rng))
        async for _ in node.steps():
            await node.step(await node.gradient(node.params))
            if not (peers := node.peers()):
                continue
            peer = peers[node.rank % len(peers)]
            try:
                reply = await node.ask(peer, "model", note(0.0))
            except fs.LostPeer:
                node.count("lost")
            else:
                node.params += 0.5 * (codec.decode(reply, node.params) - node.params)


def train(nodes, **rest):
    rest = {"compute": fs.Compute(step="1 s"), "start_skew": 0.0, "record_every": 5, **rest}
    return fs.simulate(Pull(), PROBLEM, nodes=nodes, steps=20, **rest)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_it_begins_anew_with_model_optimizer_and_steps_of_the_start(nodes):
    trace = train(nodes, faults=[fs.faults.Crash(node=0, at=7.5, back_after=2)])
    report = trace.nodes[0]
    assert (report.steps, report.gradients, report.counts) == (20, 28, {"restarts": 1})
    assert report.seconds == 29.5
    assert [row.step for row in trace.rows] == [0, 5, 10, 15, 20]
    assert trace.rows[-1].seconds == 29.5
    assert set(trace.models) == set(range(nodes))


def test_alone_it_does_again_what_it_did():
    """As a process started again would: the same data, so the same model."""
    momentum = {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)}
    once, again = train(1, **momentum), train(1, **momentum, faults=[fs.faults.Crash(node=0, at=7.5, back_after=2)])
    assert again.models[0].equal(once.models[0])


def test_who_comes_back_last_is_waited_for_in_the_last_record():
    trace = train(2, faults=[fs.faults.Crash(node=1, at=18.5, back_after=30)])
    assert [row.step for row in trace.rows] == [0, 5, 10, 15, 20]
    assert trace.rows[-1].seconds == 68.5


def test_two_runs_are_the_same_to_the_bit():
    faults = [
        fs.faults.Crash(node=1, at="6 s", back_after="3 s"),
        fs.faults.MessageLoss(share=0.2),
        fs.faults.Pause(node=0, start=8, duration=4),
    ]
    hardware = {"compute": fs.Compute(step="1 s", spread=0.3), "network": fs.Network(bandwidth="1 kB/s", latency=0.1)}
    first, second = (train(3, timeout=3, faults=faults, **hardware) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert all(first.models[rank].equal(second.models[rank]) for rank in range(3))
    assert first.nodes[1].counts["restarts"] == 1


def test_all_may_die_and_the_last_says_nothing():
    faults = [
        fs.faults.Crash(node=1, at=6.5, back_after=1),
        fs.faults.Crash(node=0, at=9.5),
        fs.faults.Crash(node=1, at=10.5),
    ]
    trace = train(2, faults=faults)
    assert trace.models == {}
    assert [row.step for row in trace.rows] == [0, 5]


def test_collectives_need_everybody_who_ever_was():
    @dataclass(frozen=True)
    class Waits:
        async def run(self, node):
            while node.rank == 1 and node.incarnation == 0:
                await node.gradient(node.params)
            if node.rank == 1:
                await node.mean(node.params)

    with pytest.raises(
        fs.LostPeer, match=r"node 1 was in mean\('model'\), round 0 when it lost its own first incarnation"
    ):
        fs.simulate(
            Waits(),
            Page(),
            nodes=2,
            compute=fs.Compute(step="1 s"),
            faults=[fs.faults.Crash(node=1, at=2, back_after=1)],
        )
    with pytest.raises(fs.LostPeer, match="lost node 1"):
        fs.simulate(fs.LocalSGD(period=1), PROBLEM, nodes=2, faults=[fs.faults.Crash(node=1, at=0, back_after=1)])


def test_a_users_own_function_cannot_begin_anew():
    with pytest.raises(ValueError, match=r"Crash\.back_after needs a strategy on a workload"):
        fs.simulate(lambda: None, nodes=2, faults=[fs.faults.Crash(node=0, at=1, back_after=1)])
