"""Whoever has not shown that it is of the run holds few connections, and takes none from nodes."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
import torch
from hostile import SECONDS, connect, read_response, request, speak, stranger

from flockstep.backends.real.mailbox import server
from flockstep.backends.real.security.keys import Keys, create
from flockstep.message import Message

FEW, MANY = 8, 300
KNOCK = 4


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(server, "_MOST_STRANGERS", FEW)
    monkeypatch.setattr(server, "_MOMENT", 0.01)


@pytest.fixture(params=["keys", "no keys"])
def pair(request, houses, tmp_path):
    """Two houses that have talked already."""
    keys = [None, None]
    if request.param == "keys":
        create(tmp_path, 2)
        keys = [Keys.find(tmp_path, rank) for rank in range(2)]
    first, second = (houses(rank, keys=keys[rank]) for rank in range(2))
    first.box.members.learn(str(second.box.members.me))
    first.box.knock(1)
    return first, second


def attended(house):
    """How many connections a house holds."""
    return len(house._server._open)


def flood(house, count=MANY):
    """So many silent connections, all kept open on this side."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(house.box.members.me.address)) for _ in range(count)]
        kept = stack.pop_all()
    return sockets, kept


@pytest.mark.slow
def test_few_are_let_in_at_once_and_nodes_keep_theirs(pair):
    first, second = pair
    message = Message(torch.zeros(3, dtype=torch.uint8), "raw", (3,), torch.uint8)
    second.box.answer("topic", lambda peer, asked: asked)
    held = []
    for _ in range(3):
        sockets, kept = flood(second, MANY // 3)
        with kept:
            assert first.box.ask(1, "topic", message).nbytes == message.nbytes
            # Who came first was hung up on; it would have waited for a third of the timeout.
            assert sockets[0].recv(1) == b""
            held.append(attended(second))
    # Of the nodes one, of strangers the bound and the one that makes another go.
    assert max(held) <= FEW + 3


@pytest.mark.slow
def test_a_node_that_connects_anew_gets_in_among_them(pair):
    first, second = pair
    sockets, kept = flood(second)
    with kept:
        # Its connection is gone, and it needs another.
        first.box._connections.forget(second.box.members.me.address)
        first.box.knock(1)
        assert sockets


@pytest.mark.slow
def test_many_nodes_that_come_at_once_do_not_push_each_other_out(houses, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_MOMENT", SECONDS)
    nodes = 3 * FEW
    create(tmp_path, nodes)
    target, *others = (houses(rank, nodes, keys=Keys.find(tmp_path, rank)) for rank in range(nodes))
    for other in others:
        other.box.members.learn(str(target.box.members.me))
    with ThreadPoolExecutor(len(others)) as pool:
        for _ in pool.map(lambda other: other.box.knock(0), others):
            pass


def test_those_who_ask_about_a_house_without_a_word_of_the_run_are_strangers(houses):
    house = houses(1)
    address = house.box.members.me.address
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(address)) for _ in range(3 * FEW)]
        for connection in sockets:
            with suppress(OSError):
                connection.sendall(b"GET /about HTTP/1.1\r\nhost: x\r\n\r\n")
        assert speak(address, request(b"\1", kind=KNOCK)).status == 200
        assert attended(house) <= FEW + 2


@pytest.mark.slow
def test_a_node_is_no_stranger_from_its_first_message_on(houses):
    house = houses(1)
    with connect(house.box.members.me.address) as known:
        known.sendall(request(b"\1", kind=KNOCK))
        assert read_response(known).status == 200
        _, kept = flood(house)
        with kept:
            known.sendall(request(b"\1", kind=KNOCK))
            assert read_response(known).status == 200


@pytest.mark.slow
def test_a_message_of_another_run_makes_nobody_known(houses):
    house = houses(1)
    with connect(house.box.members.me.address) as other:
        other.sendall(request(b"\1", kind=KNOCK, run=bytes(16)))
        assert read_response(other).status == 409
        _, kept = flood(house)
        with kept, suppress(ConnectionError):
            assert other.recv(1) == b""


@pytest.mark.slow
def test_one_that_shakes_hands_without_a_certificate_stays_one(tmp_path, houses):
    create(tmp_path, 2)
    house = houses(1, keys=Keys.find(tmp_path, 1))
    with connect(house.box.members.me.address, stranger()) as nobody:
        _, kept = flood(house)
        with kept, suppress(OSError):
            nobody.settimeout(SECONDS)
            assert nobody.recv(1) == b""
    assert attended(house) <= FEW + 2
