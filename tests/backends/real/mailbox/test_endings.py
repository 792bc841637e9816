"""Nothing keeps a house from closing, and nothing that comes from outside keeps it from listening."""

import faulthandler
import socket
import sys
import threading
from concurrent.futures import Future

import pytest
import torch
from hostile import RUN, SECONDS, connect, head, read_response, request, speak

from flockstep.backends.real.mailbox import request_handler, server
from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.security.keys import Keys, create
from flockstep.errors import LostPeer
from flockstep.message import Message

LONG = 100_000.0
"""A timeout nobody wants to wait for: what does not end long before it hangs."""


def message():
    return Message(torch.zeros(3, dtype=torch.uint8), "raw", (3,), torch.uint8)


def open_one(rank, size=3, **site):
    return open_endpoint(RUN, rank, size, Limits(LONG), ListenOn(**site))


def address_of(house):
    return house.box.members.me.address


@pytest.fixture(autouse=True)
def others():
    """Threads of tests before this one, which may still be ending."""
    _others.clear()
    _others.update(threading.enumerate())


_others = set()


def ours(*names):
    """The threads of this test's houses."""
    return [thread for thread in {*threading.enumerate()} - _others if thread.name.startswith(names)]


def ends(house):
    """Whether a house closes, and leaves no thread; if not, where all threads are is on stderr."""
    mine = ours("mailbox", "pulse", "letters")
    closing = threading.Thread(target=house.close, daemon=True)
    closing.start()
    closing.join(SECONDS)
    left = [thread for thread in (closing, *mine) if thread.is_alive()]
    if left:
        print(left, file=sys.stderr)
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
    return not left


def until(condition):
    """Wait for something that nobody announces."""
    event = threading.Event()
    for _ in range(SECONDS * 100):
        if condition():
            return
        event.wait(0.01)
    pytest.fail("it never happened")


def aside(function, *arguments):
    """In a thread that keeps nobody from ending, unlike a pool's."""
    future = Future()

    def work():
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def attending():
    return len(ours("mailbox connection"))


def test_with_nothing_going_on():
    assert ends(open_one(0))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_with_letters_to_nobody_knows_whom(count):
    house = open_one(0)
    for _ in range(count):
        house.box.send(2, message())
    assert ends(house)


def test_with_a_question_to_nobody_knows_whom():
    house = open_one(0)
    asked = aside(house.box.ask, 2, "topic", message())
    assert ends(house)
    with pytest.raises(LostPeer):
        asked.result(SECONDS)


@pytest.mark.parametrize(
    "said", [b"", b"POST", head(500), head(181) + request()[-100:], request(topic=b"nobody answers")]
)
def test_with_somebody_in_the_middle_of_a_request(said):
    house = open_one(1)
    with connect(address_of(house)) as connection:
        connection.sendall(said)
        until(attending)
        assert ends(house)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"])
def test_with_somebody_in_the_middle_of_a_handshake(tmp_path, said):
    create(tmp_path, 2)
    house = open_one(1, keys=Keys.find(tmp_path, 1))
    with connect(address_of(house)) as connection:
        connection.sendall(said)
        until(attending)
        assert ends(house)


def test_with_a_peer_that_does_not_shake_hands(tmp_path):
    create(tmp_path, 2)
    house = open_one(0, keys=Keys.find(tmp_path, 0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        house.box.members.learn(f"1=127.0.0.1:{listener.getsockname()[1]}/1")
        house.box.send(1, message())
        connection, _ = listener.accept()
        with connection:
            # The first word of the handshake: from here on it waits for the second.
            assert connection.recv(1)
            assert ends(house)


def test_with_somebody_waiting_for_a_letter():
    house = open_one(0)
    waiting = aside(house.box.receive, 1)
    assert ends(house)
    with pytest.raises(LostPeer):
        waiting.result(SECONDS)


def test_with_an_answer_that_nobody_takes():
    house, big = open_one(1), torch.zeros(50_000_000, dtype=torch.uint8)
    house.box.answer("topic", lambda sender, asked: Message(big, "raw", (1,), torch.uint8))
    with connect(address_of(house)) as connection:
        connection.sendall(request(b"\1"))
        assert connection.recv(1, socket.MSG_PEEK)
        assert ends(house)


@pytest.mark.parametrize("behind", [0, 3])
def test_with_a_handler_that_never_returns(behind, monkeypatch, caplog):
    """It is left behind, and named; those who wait for their turn behind it are not."""
    monkeypatch.setattr(server, "_PATIENCE", 0.5)
    house, asker, never, began = open_one(1), open_one(0), threading.Event(), threading.Event()

    def hang(sender, asked):
        began.set()
        never.wait()
        return asked

    house.box.answer("slow", hang)
    house.box.answer("quick", lambda sender, asked: asked)
    asker.box.members.learn(str(house.box.members.me))
    asked = [aside(asker.box.ask, 1, "slow", message())]
    assert began.wait(SECONDS)
    asked += [aside(asker.box.ask, 1, "quick", message()) for _ in range(behind)]
    until(lambda: attending() > behind)
    closing = threading.Thread(target=house.close, daemon=True)
    closing.start()
    closing.join(SECONDS)
    assert not closing.is_alive()
    said = [record.getMessage() for record in caplog.records if record.name == "flockstep"]
    assert said == ["node 1 ends, and leaves a thread behind that does not: 'slow', asked by node 0"]
    for question in asked:
        with pytest.raises(LostPeer):
            question.result(SECONDS)
    never.set()
    until(lambda: not attending())
    assert ends(asker)


@pytest.mark.slow
def test_nobody_waits_longer_for_a_turn_than_for_an_answer(houses):
    house, began, go = houses(1, seconds=2.0), threading.Event(), threading.Event()

    def hang(sender, asked):
        began.set()
        go.wait(SECONDS)
        return asked

    house.box.answer("slow", hang)
    house.box.answer("quick", lambda sender, asked: asked)
    with connect(address_of(house)) as first, connect(address_of(house)) as second:
        first.sendall(request(topic=b"slow"))
        assert began.wait(SECONDS)
        second.sendall(request(topic=b"quick"))
        said = read_response(second)
        go.set()
        assert (said.status, said.words) == (500, "node 1 is busy with another question, and had no time for 'quick'")
        assert read_response(first).status == 200


def test_who_is_refused_and_goes_on_talking_is_cut_off(houses, monkeypatch):
    monkeypatch.setattr(request_handler, "_DRAIN_SECONDS", 0.2)
    house = houses(1)
    with connect(address_of(house)) as connection:
        connection.sendall(request(run=bytes(16)))
        assert read_response(connection).status == 409
        assert connection.recv(1) == b""

        def cut_off():
            # Each byte comes sooner than the time it is waited for.
            try:
                connection.sendall(b"x")
            except OSError:
                return True
            return False

        until(cut_off)
        until(lambda: not attending())


def test_when_there_are_no_more_threads_it_listens_on(houses, monkeypatch):
    house = houses(1)
    start = threading.Thread.start
    failed = threading.Event()

    def refuse(thread):
        if thread.name != "mailbox connection":
            return start(thread)
        failed.set()
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with connect(address_of(house)) as connection:
            assert failed.wait(SECONDS)
            assert connection.recv(1) == b""
    assert speak(address_of(house), request(b"\1", kind=4)).status == 200


@pytest.mark.slow
def test_hundreds_of_silent_connections_do_not_keep_others_out(houses):
    house = houses(1)
    silent = [connect(address_of(house)) for _ in range(300)]
    try:
        assert speak(address_of(house), request(b"\1", kind=4)).status == 200
    finally:
        for connection in silent:
            connection.close()
    until(lambda: not attending())
