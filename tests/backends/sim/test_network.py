"""Virtual time is arithmetic: what a transfer costs can be said beforehand."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import flockstep as fs
from flockstep.message import HEADER_BYTES
from flockstep.testing.law import Page

MEGABYTE_PER_S = "8 Mbit/s"


def run(program, nodes, **hardware):
    return fs.simulate(program, Page(), nodes=nodes, steps=1, start_skew=0.0, **hardware)


def body(nbytes):
    return fs.Message(torch.zeros(nbytes - HEADER_BYTES, dtype=torch.uint8), "test", (), torch.float64)


@dataclass(frozen=True)
class Deliver:
    """Each (sender, receiver, bytes) at once; a receiver's page holds when its last message came."""

    transfers: tuple[tuple[int, int, int], ...]

    async def run(self, node):
        for sender, receiver, nbytes in self.transfers:
            if sender == node.rank:
                node.send(receiver, body(nbytes))
        for sender, receiver, _ in self.transfers:
            if receiver == node.rank:
                await node.receive(sender)


def arrivals(transfers, size, **network):
    trace = run(Deliver(tuple(transfers)), size, network=fs.Network(**network))
    return [node.seconds for node in trace.nodes]


def test_one_message_takes_its_latency_and_its_bytes():
    times = arrivals([(0, 1, 500_000)], 2, bandwidth=MEGABYTE_PER_S, latency="20 ms")
    assert times == pytest.approx([0.0, 0.52])


def test_two_messages_from_one_node_share_its_uplink():
    times = arrivals([(0, 1, 500_000), (0, 2, 500_000)], 3, bandwidth=MEGABYTE_PER_S)
    assert times == pytest.approx([0.0, 1.0, 1.0])


def test_two_messages_to_one_node_share_its_downlink():
    times = arrivals([(0, 2, 500_000), (1, 2, 250_000)], 3, bandwidth=MEGABYTE_PER_S)
    # Half the rate each until the short one is there at 0.5 s, then the rest alone.
    assert times[2] == pytest.approx(0.75)


def test_what_one_flow_cannot_use_the_others_get():
    slow = {1: fs.Link(down="2 Mbit/s")}
    times = arrivals([(0, 1, 250_000), (0, 2, 750_000)], 3, bandwidth=MEGABYTE_PER_S, nodes=slow)
    # Node 1 takes a quarter of the uplink; node 2 gets the other three quarters, not half.
    assert times[1:] == pytest.approx([1.0, 1.0])


def test_messages_on_other_links_do_not_disturb_each_other():
    times = arrivals([(0, 1, 500_000), (2, 3, 500_000)], 4, bandwidth=MEGABYTE_PER_S)
    assert times[1] == times[3] == pytest.approx(0.5)


def test_a_pair_may_have_a_way_of_its_own():
    pairs = {(0, 1): fs.Link(bandwidth="4 Mbit/s", latency="80 ms")}
    times = arrivals([(0, 1, 500_000), (1, 0, 500_000)], 2, bandwidth=MEGABYTE_PER_S, pairs=pairs)
    assert times == pytest.approx([0.5, 1.08])


def test_a_short_message_does_not_overtake_a_long_one_of_the_same_pair():
    times = arrivals([(0, 1, 900_000), (0, 1, 100_000)], 2, bandwidth=MEGABYTE_PER_S)
    assert times[1] == pytest.approx(1.0)


@dataclass(frozen=True)
class OneMean:
    """One mean of a megabyte."""

    megabyte: ClassVar[int] = 125_000

    async def run(self, node):
        await node.mean(torch.zeros(self.megabyte, dtype=torch.float64))


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_a_mean_costs_what_its_ring_of_chunks_costs(nodes):
    network = fs.Network(bandwidth=MEGABYTE_PER_S, latency="10 ms")
    trace = run(OneMean(), nodes, network=network)
    stages = 2 * (nodes - 1)
    assert trace.seconds == pytest.approx(stages / nodes * 1.0 + stages * 0.01)
    assert {node.bytes_sent for node in trace.nodes} == {round(stages / nodes * 1e6)}


def test_one_slow_link_shows_in_a_mean():
    for slow in (fs.Link(up="2 Mbit/s"), fs.Link(down="2 Mbit/s"), fs.Link(bandwidth="2 Mbit/s")):
        trace = run(OneMean(), 4, network=fs.Network(bandwidth=MEGABYTE_PER_S, nodes={2: slow}))
        assert trace.seconds == pytest.approx(1.5 / 0.25)


@dataclass(frozen=True)
class TwoMeans:
    """Two means at the same time, on two channels."""

    async def run(self, node):
        v = torch.zeros(OneMean.megabyte, dtype=torch.float64)
        one, two = node.spawn(node.mean(v, "one")), node.spawn(node.mean(v, "two"))
        await one
        await two


def test_two_means_at_once_share_the_links():
    assert run(TwoMeans(), 2, network=fs.Network(bandwidth=MEGABYTE_PER_S)).seconds == pytest.approx(2.0)


def test_a_coded_mean_costs_half_the_bytes_and_two_latencies():
    network = fs.Network(bandwidth=MEGABYTE_PER_S, latency="10 ms")

    @dataclass(frozen=True)
    class Coded:
        async def run(self, node):
            mean = fs.averages.Coded(codec=fs.codecs.Cast(dtype="bf16")).start(node)
            await mean(torch.zeros(250_000, dtype=torch.float32))

    trace = run(Coded(), 4, network=network)
    sent = 2 * 3 * (250_000 / 4 * 2 + HEADER_BYTES)
    assert trace.nodes[0].bytes_sent == sent
    assert trace.seconds == pytest.approx(sent / 1e6 + 0.02)


@dataclass(frozen=True)
class AskTwice:
    """Node 1 asks node 0 for half a megabyte, twice."""

    async def run(self, node):
        node.answer("half", lambda peer, message: body(500_000))
        if node.rank == 1:
            for _ in range(2):
                await node.ask(0, "half", body(1000))


def test_a_question_takes_its_way_and_the_reply_its_own():
    trace = run(AskTwice(), 2, network=fs.Network(bandwidth=MEGABYTE_PER_S, latency="10 ms"))
    assert trace.nodes[1].seconds == pytest.approx(2 * (0.01 + 0.001 + 0.01 + 0.5))
    assert (trace.nodes[1].bytes_sent, trace.nodes[1].bytes_received) == (2000, 1_000_000)
    assert (trace.nodes[0].bytes_received, trace.nodes[0].bytes_sent) == (2000, 1_000_000)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fs.Network(bandwidth="100 Mbps"), "unknown unit 'Mbps'"),
        (lambda: fs.Network(bandwidth=100), "must be a string with its unit"),
        (lambda: fs.Network(bandwidth="0 Mbit/s"), "must be positive"),
        (lambda: fs.Network(bandwidth="1 Gbit/s", latency="20 lightyears"), "unknown unit 'lightyears'"),
        (lambda: fs.Network(bandwidth="1 Gbit/s", latency=-1), "must be finite and not negative"),
        (lambda: fs.Network(bandwidth="1 Gbit/s", nodes={"a": fs.Link()}), "must be a whole number"),
        (lambda: fs.Network(bandwidth="1 Gbit/s", pairs={(0, 1): fs.Link(up="1 kB/s")}), "give bandwidth only"),
        (lambda: fs.Link(up="fast"), "Link.up must be a rate such as"),
        (lambda: run(OneMean(), 2, network=fs.Network(bandwidth="1 MB/s", nodes={2: fs.Link()})), "names node 2"),
        (lambda: run(OneMean(), 2, network=fs.Network(bandwidth="1 MB/s", pairs={(0, 9): fs.Link()})), "names node 9"),
    ],
)
def test_bad_networks_are_refused_in_one_sentence(make, sentence):
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert sentence in str(caught.value)
