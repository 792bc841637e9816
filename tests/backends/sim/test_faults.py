"""Pauses and partitions: what stands still, until when, and who gives up meanwhile."""

import pytest
import torch

import flockstep as fs
from flockstep.backends.sim.cluster.fault_schedule import Outages, after
from flockstep.message import HEADER_BYTES
from flockstep.testing.law import note, read

MEGABYTE = 1_000_000
NETWORK = fs.Network(bandwidth="8 Mbit/s", latency="100 ms")  # a megabyte per second
PAIR = fs.faults.Partition(groups=((0,), (1,)), start=1, duration=2)


def body(nbytes):
    return fs.Message(torch.zeros(nbytes - HEADER_BYTES, dtype=torch.uint8), "test", (), torch.float64)


async def answer(node):
    """Answers with its rank, and says when it was asked."""

    def handler(peer, message):
        node.say(f"asked by {peer}")
        return note(float(node.rank))

    node.answer("who", handler)


async def ask(node, peer=0):
    try:
        reply = await node.ask(peer, "who", note(0.0))
    except fs.LostPeer as error:
        assert f"node {node.rank} lost node {peer} in ask('who')" in str(error)
        node.say("lost")
    else:
        node.say(read(reply)[0])


def asks_at(second, peer=0):
    async def part(node):
        for _ in range(second):
            await node.gradient(node.params)
        await ask(node, peer)

    return part


def gradients(count):
    async def part(node):
        for _ in range(count):
            await node.gradient(node.params)
            node.say("gradient")

    return part


# Spans of time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "seconds", "end"),
    [
        (0.0, 0.5, 0.5),
        (0.0, 1.0, 3.0),  # done at the very moment it begins: that moment belongs to the span
        (0.0, 1.5, 3.5),
        (1.0, 0.0, 3.0),
        (2.5, 0.5, 3.5),
        (3.0, 0.0, 3.0),  # the end does not
        (0.0, 2.0, 7.0),  # two spans that touch are one, and one inside another adds nothing
        (0.0, 3.0, 8.0),
        (8.0, 1.0, 9.0),
    ],
)
def test_seconds_outside_of_spans(now, seconds, end):
    assert after([(1.0, 3.0), (4.0, 6.0), (4.5, 5.0), (6.0, 7.0)], now, seconds) == end
    assert after([], now, seconds) == now + seconds


def test_where_there_are_outages():
    faults = [
        fs.faults.Pause(node=1, start=5, duration=1),
        fs.faults.Partition(groups=((0,), (1, 2)), start=1, duration=2),
    ]
    outages = Outages(faults, 4)
    assert outages.between(0, 1) == [(1.0, 3.0), (5.0, 6.0)]
    assert outages.between(1, 2) == [(5.0, 6.0)]
    # Node 3 is in no group: alone in one further group.
    assert outages.between(2, 3) == outages.between(3, 0) == [(1.0, 3.0)]
    assert outages.anywhere == [(1.0, 3.0), (5.0, 6.0)]


def test_what_is_nothing_is_no_outage():
    nothing = [fs.faults.Pause(node=0, start=1, duration=0), fs.faults.Partition(groups=((0, 1),), start=1, duration=1)]
    assert Outages(nothing, 2).anywhere == []
    assert Outages(nothing, 2).between(0, 1) == ()
    assert Outages(nothing, 3).anywhere == [(1.0, 2.0)]


# Pauses --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "duration", "ends"),
    [
        (0.0, 5.0, [6, 7, 8]),  # from the beginning
        (0.5, 5.0, [6, 7, 8]),  # half of a gradient
        (1.0, 5.0, [6, 7, 8]),  # as the first is done: it goes on at the end
        (1.5, 0.0, [1, 2, 3]),
        (3.5, 5.0, [1, 2, 3]),  # after all
    ],
)
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_paused_node_computes_nothing_and_goes_on_where_it_was(play, nodes, start, duration, ends):
    pause = fs.faults.Pause(node=nodes - 1, start=start, duration=duration)
    stage = play(*[gradients(3)] * nodes, faults=[pause])
    assert [time for time, _ in stage.of(nodes - 1)] == ends
    if nodes > 1:
        assert [time for time, _ in stage.of(0)] == [1, 2, 3]
    assert stage.trace.nodes[-1].seconds == ends[-1]


def test_pauses_may_overlap_and_touch(play):
    spans = [(0.5, 2.0), (1.0, 1.0), (2.5, 1.5)]
    stage = play(gradients(2), faults=[fs.faults.Pause(node=0, start=start, duration=long) for start, long in spans])
    assert stage.of(0) == [(4.5, "gradient"), (5.5, "gradient")]


def test_a_pause_counts_as_what_the_node_was_doing(play):
    stage = play(gradients(1), faults=[fs.faults.Pause(node=0, start=0.5, duration=3)])
    report = stage.trace.nodes[0]
    assert (report.computing, report.waiting, report.talking, report.seconds) == (4.0, 0.0, 0.0, 4.0)


@pytest.mark.parametrize("network", [None, fs.Network(bandwidth="1 GB/s")])
def test_a_pause_shorter_than_the_timeout_only_takes_time(play, network):
    pause = fs.faults.Pause(node=0, start=1, duration=3)
    stage = play(answer, asks_at(1), asks_at(2), asks_at(4), network=network, timeout=5, faults=[pause])
    assert sorted(stage.of(0)) == [(4, "asked by 1"), (4, "asked by 2"), (4, "asked by 3")]
    for rank in (1, 2, 3):
        assert stage.of(rank) == [(4, 0.0)]


@pytest.mark.parametrize("network", [None, NETWORK])
def test_a_pause_longer_than_the_timeout_loses_those_who_ask_and_only_them(play, network):
    async def asks_twice(node):
        await node.gradient(node.params)
        await ask(node)
        node.say(node.peers())
        await node.gradient(node.params)
        await ask(node, 2)

    stage = play(
        answer, asks_twice, answer, timeout=5, network=network, faults=[fs.faults.Pause(node=0, start=1, duration=9)]
    )
    # Paused, not gone: it still is a member. What was given up is not answered when it wakes.
    assert stage.of(1)[:2] == [(6, "lost"), (6, (0, 2))]
    assert stage.of(1)[2][1] == 2.0
    assert stage.of(0) == []


def test_a_paused_asker_learns_of_its_deadline_when_it_wakes(play):
    async def never(node):
        for _ in range(10):
            await node.gradient(node.params)

    stage = play(never, asks_at(1), timeout=2, faults=[fs.faults.Pause(node=1, start=2, duration=5)])
    assert stage.of(1) == [(7, "lost")]


def test_a_paused_asker_gets_the_reply_that_waited_for_it(play):
    network = fs.Network(bandwidth="8 Mbit/s", latency="1 s")
    # The question is there at 2 s, the reply half a second from home at 2.5 s: it waits, and goes on.
    stage = play(
        answer, asks_at(1), timeout=8, network=network, faults=[fs.faults.Pause(node=1, start=2.5, duration=4)]
    )
    assert stage.of(1) == [(7 + 2 * note(0.0).nbytes / MEGABYTE, 0.0)]
    stage = play(
        answer, asks_at(1), timeout=4, network=network, faults=[fs.faults.Pause(node=1, start=2.5, duration=4)]
    )
    assert stage.of(1) == [(6.5, "lost")]


@pytest.mark.parametrize("paused", [0, 1])
@pytest.mark.parametrize(
    ("start", "arrival"),
    [
        (0.0, 4.1),
        (0.05, 4.1),  # in the middle of the latency
        (0.6, 4.1),  # half transferred
        (1.2, 1.1),  # there already
    ],
)
def test_a_message_half_transferred_waits_and_goes_on(play, paused, start, arrival):
    async def sends(node):
        node.send(1, body(MEGABYTE))

    async def receives(node):
        await node.receive(0)
        node.say("there")

    stage = play(sends, receives, network=NETWORK, faults=[fs.faults.Pause(node=paused, start=start, duration=3)])
    assert stage.of(1) == [(arrival, "there")]
    # To the bit, where numbers are exact: who is stopped at the moment the last byte comes has not got it.
    exact = fs.Network(bandwidth="8 Mbit/s")
    for moment, end in ((1.0, 4.0), (1.25, 1.0)):
        stage = play(sends, receives, network=exact, faults=[fs.faults.Pause(node=paused, start=moment, duration=3)])
        assert stage.of(1) == [(end, "there")]


def test_who_shares_the_link_gets_the_room_of_a_stalled_message(play):
    async def sends(node):
        node.send(1, body(MEGABYTE))
        node.send(2, body(MEGABYTE))

    async def receives(node):
        await node.receive(0)
        node.say("there")

    network = fs.Network(bandwidth="8 Mbit/s")
    pause = fs.faults.Pause(node=1, start=1, duration=5)
    stage = play(sends, receives, receives, network=network, faults=[pause])
    # Half of each by 1 s; then node 2 has the uplink alone, and node 1 from 6 s on.
    assert stage.of(2) == [(1.5, "there")]
    assert stage.of(1) == [(6.5, "there")]


@pytest.mark.parametrize("network", [None, fs.Network(bandwidth="8 Mbit/s")])
def test_a_collective_waits_for_a_paused_member(play, network):
    async def means(node):
        v = torch.full((125_000,), float(node.rank), dtype=torch.float64)
        node.say(float((await node.mean(v))[0]))

    stage = play(means, means, means, network=network, faults=[fs.faults.Pause(node=2, start=0.5, duration=3)])
    for rank in range(3):
        # Without a network it is over before the pause begins.
        assert stage.of(rank) == [(0.0 if network is None else pytest.approx(4 / 3 + 3, abs=1e-6), 1.0)]


def test_a_background_task_stands_still_too(play):
    async def part(node):
        task = node.spawn(gradients(2)(node))
        await ask(node)
        await task

    stage = play(answer, part, faults=[fs.faults.Pause(node=1, start=0.5, duration=2)])
    assert stage.of(1) == [(0, 0.0), (3, "gradient"), (4, "gradient")]


# Partitions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [None, fs.Network(bandwidth="1 GB/s")])
def test_a_partition_that_heals_before_the_deadline_only_takes_time(play, network):
    stage = play(answer, asks_at(1), asks_at(2), timeout=3, network=network, faults=[PAIR])
    # Node 2 is in no group, and so on neither side.
    assert sorted(stage.of(0)) == [(3, "asked by 1"), (3, "asked by 2")]
    assert stage.of(1) == stage.of(2) == [(3, 0.0)]


@pytest.mark.parametrize("network", [None, NETWORK])
def test_a_partition_that_heals_after_the_deadline_loses_those_on_the_other_side(play, network):
    async def asks_again(node):
        await asks_at(1)(node)
        await asks_at(4)(node)

    faults = [fs.faults.Partition(groups=((0, 2), (1, 3)), start=1, duration=4)]
    stage = play(answer, asks_again, asks_at(1), answer, timeout=2, network=network, faults=faults)
    assert stage.of(1)[0] == (3, "lost")
    assert stage.of(1)[1][1] == 0.0
    assert stage.of(2)[0][1] == 0.0
    # The given-up question never reached it.
    assert [what for _, what in stage.of(0)] == ["asked by 2", "asked by 1"]


def test_nodes_of_one_group_do_not_notice(play):
    stage = play(
        answer,
        asks_at(2),
        asks_at(2, peer=3),
        answer,
        faults=[fs.faults.Partition(groups=((0, 1),), start=1, duration=9)],
    )
    assert stage.of(1) == [(2, 0.0)]
    assert stage.of(2) == [(2, 3.0)]


@pytest.mark.parametrize(("second", "time"), [(0, 0), (1, 3), (2, 3), (3, 3), (4, 4)])
def test_a_partition_from_its_start_until_just_before_its_end(play, second, time):
    assert play(answer, asks_at(second), faults=[PAIR]).of(1) == [(time, 0.0)]


def test_messages_stall_and_go_on_without_loss(play):
    async def sends(node):
        for k in range(3):
            node.send(1, note(float(k)))
            await node.gradient(node.params)

    async def receives(node):
        for _ in range(3):
            node.say(read(await node.receive(0))[0])

    assert play(sends, receives, faults=[PAIR]).of(1) == [(0, 0.0), (3, 1.0), (3, 2.0)]


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_collective_waits_for_the_partition_to_end(play, nodes):
    async def means(node):
        await node.gradient(node.params)
        await node.mean(node.params)
        node.say("mean")

    stage = play(*[means] * nodes, faults=[PAIR])
    assert all(stage.of(rank) == [(3, "mean")] for rank in range(nodes))


def test_alone_there_is_nobody_to_be_cut_off_from(play):
    async def means(node):
        await node.gradient(node.params)
        await node.mean(node.params)
        node.say("mean")

    assert play(means, faults=[fs.faults.Partition(groups=((0,),), start=1, duration=2)]).of(0) == [(1, "mean")]


def test_a_users_own_function_pauses_as_well():
    def train():
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fs.join(model, optimizer, fs.LocalSGD(period=1)) as node:
            model(torch.ones(2)).sum().backward()
            optimizer.step()
            return node.now

    pause = fs.faults.Pause(node=1, start=0.5, duration=3)
    trace = fs.simulate(train, nodes=2, compute=fs.Compute(step="1 s"), start_skew=0.0, faults=[pause])
    assert trace.results == {0: 4.0, 1: 4.0}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fs.faults.Pause(node=-1, start=0, duration=1), "Pause.node must be at least 0, got -1"),
        (lambda: fs.faults.Pause(node=0, start="soon", duration=1), "Pause.start must be a time such as"),
        (
            lambda: fs.faults.Pause(node=0, start=0, duration=-1),
            "Pause.duration must be finite and not negative, got -1",
        ),
        (
            lambda: fs.faults.Partition(groups=(), start=0, duration=1),
            "Partition.groups must be groups of nodes such as",
        ),
        (
            lambda: fs.faults.Partition(groups=((0,), ()), start=0, duration=1),
            "Partition.groups must be groups of nodes",
        ),
        (lambda: fs.faults.Partition(groups=(0, 1), start=0, duration=1), "Partition.groups must be groups of nodes"),
        (
            lambda: fs.faults.Partition(groups=((0, 1), (1,)), start=0, duration=1),
            "Partition.groups names node 1 twice",
        ),
        (
            lambda: fs.faults.Partition(groups=((0, 0.5),), start=0, duration=1),
            "Partition.groups must be a whole number",
        ),
        (
            lambda: fs.faults.Partition(groups=((0,),), start=-1, duration=1),
            "Partition.start must be finite and not negative",
        ),
        (lambda: fs.faults.Partition(groups=((0,),), start=0, duration="1 m"), "Partition.duration: unknown unit 'm'"),
        (lambda: fs.faults.MessageLoss(share=1.5), "MessageLoss.share must be between 0 and 1, got 1.5"),
        (lambda: fs.faults.MessageLoss(share=0.1, start=-1), "MessageLoss.start must be finite and not negative"),
        (lambda: fs.faults.MessageLoss(share=0.1, duration="ever"), "MessageLoss.duration must be a time such as"),
        (lambda: fs.faults.Crash(node=0, at=1, back_after="later"), "Crash.back_after must be a time such as"),
    ],
)
def test_bad_faults_are_refused_in_one_sentence(make, sentence):
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "fault",
    [fs.faults.Pause(node=2, start=0, duration=1), fs.faults.Partition(groups=((0,), (2,)), start=0, duration=1)],
)
def test_every_node_named_must_exist(play, fault):
    with pytest.raises(ValueError, match=r"simulate\.faults names node 2, but there are nodes 0 to 1"):
        play(answer, answer, faults=[fault])
