"""Whoever is of another run, time or node is refused by name; without the right keys one gets nothing."""

import http.client
import json
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
import torch
from hostile import (
    ASK,
    KNOCK,
    REPLY,
    RUN,
    SECONDS,
    SEND,
    body,
    connect,
    head,
    plain_frame,
    plain_head,
    read_response,
    request,
    speak,
    stranger,
)

from flockstep.backends.real.mailbox.endpoint import ListenOn
from flockstep.backends.real.security import keys
from flockstep.backends.real.security.keys import Keys, create, home_of, name_of
from flockstep.errors import LostPeer
from flockstep.message import Message

OTHER = bytes(range(16))


def message(*numbers):
    return Message(torch.tensor(numbers or (1, 2, 3), dtype=torch.uint8), "raw", (3,), torch.uint8)


def doubled(sender, asked):
    return Message(asked.data * 2, asked.codec, asked.shape, asked.dtype)


def address_of(house):
    return house.box.members.me.address


@pytest.fixture
def listener(houses):
    house = houses(1)
    house.box.answer("topic", doubled)
    return house


# One message -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ASK, SEND, KNOCK])
def test_the_control_is_answered(listener, kind):
    said = speak(address_of(listener), request(b"\1\2\3", kind=kind))
    assert said.status == 200
    answer = plain_frame(said.body[:168])
    assert answer[:5] == (REPLY, RUN, 1, listener.box.members.me.incarnation, "topic")
    assert said.body[168:-8] == (b"\2\4\6" if kind == ASK else b"")


@pytest.mark.parametrize(
    ("asked", "status", "reason"),
    [
        (request(run=OTHER), 409, f"this is run {RUN.hex()}, the message is of run {OTHER.hex()}"),
        (request(version=2), 400, "this node speaks version 1 of the protocol, the message is of version 2"),
        (request(version=0), 400, "this node speaks version 1 of the protocol, the message is of version 0"),
        (request(sender=1), 409, "node 1 is this node itself"),
        (request(kind=REPLY), 400, "a reply to nothing"),
        (request(kind=7), 400, "there is no kind of message 7"),
        (request(checksum=bytes(8)), 422, "the checksum does not match: the message was damaged on its way"),
        (request(b"12345").replace(b"12345", b"12355"), 422, "the checksum does not match"),
        (request(topic=b"topic").replace(b"topic", b"tobic"), 422, "the checksum does not match"),
        (head(5) + b"12345", 400, "a message has at least 176 bytes, this body has 5"),
        (head(0), 400, "a message has at least 176 bytes, this body has 0"),
        (head(len(body()) + 1) + body(), 400, "the head says 182 bytes, the message 181"),
        (head(len(body()) - 1) + body()[:-1], 400, "the head says 180 bytes, the message 181"),
        (head(len(body())) + body() + b"x", 400, "more came than the head has said"),
        (head(2**37) + body(), 413, "a body of 137438953472 bytes is too long"),
        (request(length=2**36 + 1), 413, "a message has at most 68719476736 bytes, this one says 68719476737"),
        (head(1, b"transfer-encoding: chunked"), 501, "the header transfer-encoding has no place here"),
        (head(1, b"expect: 100-continue"), 501, "the header expect has no place here"),
        (head(1, b"upgrade: websocket"), 501, "the header upgrade has no place here"),
        (head(0, first=b"POST /other HTTP/1.1"), 404, "there is nothing at b'POST /other'"),
        (head(0, first=b"GET /message HTTP/1.1"), 404, "there is nothing at b'GET /message'"),
        (head(0, first=b"DELETE /about HTTP/1.1"), 404, "there is nothing at b'DELETE /about'"),
        (head(0, first=b"GET / HTTP/1.1"), 404, "there is nothing at b'GET /'"),
        (head(0, first=b"CONNECT here:1 HTTP/1.1"), 404, "there is nothing at b'CONNECT here:1'"),
        (head(0, first=b"GET /" + b"x" * 9000 + b" HTTP/1.1"), 404, "there is nothing at b'GET /xxx"),
        (b"what is this\r\n\r\n", 400, "this is not HTTP as it should be"),
        (b"\x16\x03\x01 a handshake", 400, "this is not HTTP as it should be"),
        (head(1, b"x: " + b"y" * 30_000), 431, "this is not HTTP as it should be"),
        (request(peers=b"nonsense"), 400, "not a line about a node: 'nonsense'"),
        (request(peers=b"1=h:99999/1"), 400, "not a line about a node"),
        (request(peers=b"\xff"), 400, "the list of peers is not ASCII"),
    ],
)
def test_refused_in_words(listener, asked, status, reason):
    said = speak(address_of(listener), asked)
    assert reason in said.words
    assert said.status == status
    assert said.fields["connection"] == b"close"
    # And nobody was counted, and nothing was learned.
    assert not listener.box.members.lost()
    assert speak(address_of(listener), request(b"\1")).status == 200


def test_after_a_refusal_the_connection_ends(listener):
    with connect(address_of(listener)) as connection:
        connection.sendall(request(run=OTHER))
        assert read_response(connection).status == 409
        assert connection.recv(1) == b""


def test_a_letter_that_is_refused_is_not_delivered(listener):
    assert speak(address_of(listener), request(b"\1\2\3", kind=SEND, checksum=bytes(8))).status == 422
    assert speak(address_of(listener), request(b"\4\5\6", kind=SEND)).status == 200
    assert listener.box.receive(0).data.tolist() == [4, 5, 6]


def test_an_older_incarnation(listener):
    assert speak(address_of(listener), request(incarnation=10, peers=b"0=127.0.0.1:9/10")).status == 200
    said = speak(address_of(listener), request(incarnation=9))
    assert said.status == 409
    assert said.words == "node 0 was started anew as incarnation 10; the message is of an older one, 9"
    assert speak(address_of(listener), request(incarnation=10)).status == 200
    assert speak(address_of(listener), request(incarnation=11)).status == 200


def test_a_long_message_of_another_run_is_refused_before_it_was_sent(listener, houses):
    stranger = houses(0, run=OTHER)
    stranger.box.members.learn(str(listener.box.members.me))
    long = Message(torch.zeros(60_000_000, dtype=torch.uint8), "raw", (1,), torch.uint8)
    with pytest.raises(LostPeer, match=f"it refused: this is run {RUN.hex()}, the message is of run {OTHER.hex()}"):
        stranger.box.ask(1, "topic", long)


# Handlers --------------------------------------------------------------------------------------------------------


def test_a_topic_nobody_answers(houses):
    listener = houses(1, seconds=0.3)
    said = speak(address_of(listener), request(topic=b"weights"))
    assert (said.status, said.words) == (404, "node 1 has no handler for 'weights'")


def test_a_topic_that_is_answered_a_little_later(listener):
    with connect(address_of(listener)) as connection:
        connection.sendall(request(b"\1", topic=b"later"))
        listener.box.answer("later", doubled)
        assert read_response(connection).status == 200


def test_a_handler_that_raises(listener):
    def fail(sender, asked):
        raise RuntimeError(f"no weights for node {sender} \udc80")

    listener.box.answer("bad", fail)
    with connect(address_of(listener)) as connection:
        for _ in range(3):
            connection.sendall(request(topic=b"bad"))
            said = read_response(connection)
            assert said.status == 500
            assert said.words.startswith("node 1 failed, RuntimeError: no weights for node 0")
        connection.sendall(request(b"\7"))
        assert read_response(connection).body[168:-8] == b"\x0e"


def test_a_handler_that_returns_no_message(listener):
    listener.box.answer("bad", lambda sender, asked: None)
    with connect(address_of(listener)) as connection:
        connection.sendall(request(topic=b"bad"))
        said = read_response(connection)
        assert said.status == 500
        assert "node 1 failed" in said.words
        connection.sendall(request(b"\7"))
        assert read_response(connection).status == 200


# Between two houses ----------------------------------------------------------------------------------------------


def test_a_house_of_another_run(houses, listener):
    other = houses(0, run=OTHER)
    other.box.members.learn(str(listener.box.members.me))
    with pytest.raises(LostPeer, match=f"node 0 lost node 1 in ask.*the message is of run {OTHER.hex()}"):
        other.box.ask(1, "topic", message())


def test_a_house_that_was_started_anew(houses, listener):
    old, new = houses(0), houses(0)
    for house in old, new:
        house.box.members.learn(str(listener.box.members.me))
        assert house.box.ask(1, "topic", message()).data.tolist() == [2, 4, 6]
    with pytest.raises(LostPeer, match=f"node 0 was started anew as incarnation {new.box.members.me.incarnation}"):
        old.box.ask(1, "topic", message())
    assert new.box.ask(1, "topic", message()).data.tolist() == [2, 4, 6]


def test_somebody_else_at_the_address(houses, listener):
    asker = houses(0, size=3)
    asker.box.members.learn(f"2={address_of(listener)}/5")
    with pytest.raises(LostPeer, match=f"node 1 answers at {address_of(listener)}"):
        asker.box.ask(2, "topic", message())


def test_a_failing_handler_is_named_and_its_node_is_not_lost(two):
    def fail(sender, asked):
        raise RuntimeError("no weights yet")

    asker, asked = two
    asked.box.answer("weights", fail)
    with pytest.raises(LostPeer, match="node 1 failed, RuntimeError: no weights yet"):
        asker.box.ask(1, "weights", message())
    assert asker.box.members.alive() == (1,)


def test_a_topic_that_cannot_travel_is_the_askers_mistake(two):
    asker, _ = two
    with pytest.raises(ValueError, match="a topic has at most 64 bytes"):
        asker.box.ask(1, "x" * 65, message())
    assert asker.box.members.lost() == {}


class Liar:
    """Listens, and says the same to everybody."""

    def __init__(self, data):
        self._data, self._listener = data, socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open, self._threads = [], [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self._threads.append(threading.Thread(target=self._answer, args=(connection,)))
            self._threads[-1].start()

    def _answer(self, connection):
        with connection:
            try:
                data = b""
                while piece := connection.recv(65536):
                    data += piece
                    found = plain_head(data)
                    if found is not None and len(found[2]) >= int(dict(found[1])[b"content-length"]):
                        connection.sendall(self._data)
                        data = b""
            except OSError:
                return

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive()


@pytest.fixture
def liar():
    made = []

    def make(data):
        made.append(Liar(data))
        return made[-1]

    yield make
    for each in made:
        each.close()


def reply(**fields):
    whole = body(**{"kind": REPLY, "sender": 1, "incarnation": 5, **fields})
    return head(len(whole), first=b"HTTP/1.1 200 OK") + whole


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (reply(sender=2), "node 2 answers at"),
        (reply(run=OTHER), OTHER.hex()),
        (reply(incarnation=4), "incarnation 4|older"),
        (reply(kind=ASK), "repl"),
        (reply(version=2), "the message is of version 2"),
        (reply(checksum=bytes(8)), "the checksum does not match"),
        (reply(length=2**36 + 1), "at most 68719476736 bytes"),
        (head(3, first=b"HTTP/1.1 503 Busy") + b"why", "why"),
        (head(0, first=b"HTTP/1.1 503 Busy"), "HTTP status 503"),
        (head(0, first=b"HTTP/1.1 200 OK"), "a message has at least 176 bytes"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "this is not what should come here"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "this is not HTTP as it should be"),
        (head(2**60, first=b"HTTP/1.1 200 OK"), "too long"),
        (reply().replace(b"flockstep-peers: ", b"flockstep-peers: junk"), "not a line about a node: 'junk'"),
    ],
)
def test_a_reply_is_refused_in_words_as_well(houses, liar, answer, reason):
    asker = houses(0)
    asker.box.members.learn(f"1={liar(answer).address}/5")
    with pytest.raises(LostPeer, match=reason):
        asker.box.ask(1, "topic", message())


def test_the_control_of_replies(houses, liar):
    asker = houses(0)
    asker.box.members.learn(f"1={liar(reply()).address}/5")
    for _ in range(3):
        assert asker.box.ask(1, "topic", message()).data.tolist() == [1, 2, 3, 4, 5]


# Identity -----------------------------------------------------------------------------------------------------------


def test_about_for_any_plain_client(listener):
    host, _, port = address_of(listener).rpartition(":")
    client = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    try:
        for _ in range(2):
            client.request("GET", "/about", headers={"User-Agent": "curl/8", "Accept": "*/*"})
            response = client.getresponse()
            about = json.loads(response.read())
            assert response.status == 200
            me = listener.box.members.me
            assert (about["run"], about["rank"], about["incarnation"]) == (RUN.hex(), 1, me.incarnation)
    finally:
        client.close()


@pytest.mark.parametrize(
    "asked", [b"GET /about HTTP/1.0\r\n\r\n", b"GET /about HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"]
)
def test_who_asks_for_the_connection_to_end_is_heard(listener, asked):
    with connect(address_of(listener)) as connection:
        connection.sendall(asked)
        assert read_response(connection).status == 200
        assert connection.recv(1) == b""


# Keys ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    create(folder / "foreign", 3)
    with pytest.MonkeyPatch.context() as clock:
        clock.setattr(keys, "_now", lambda: datetime.now(UTC) - timedelta(days=30))
        create(folder / "run", 1, days=10)
    # Of one authority with the others: nothing is wrong with it but the date.
    home_of(folder / "run", 0).rename(folder / "expired")
    create(folder / "run", 3)
    return folder


@pytest.fixture
def secured(houses, folder):
    house = houses(1, size=3, keys=Keys.find(folder / "run", 1))
    house.box.answer("topic", doubled)
    return house


def gets(address, data, context):
    """All that somebody gets."""
    got = b""
    try:
        with connect(address, context, name_of(1)) as connection:
            connection.sendall(data)
            while piece := connection.recv(4096):
                got += piece
    except OSError as error:
        return got, error
    return got, None


ASKED = [request(b"\1"), head(0, first=b"GET /about HTTP/1.1"), b"garbage\r\n\r\n"]


OUTSIDERS = {"no": None, "a foreign": "foreign/node-0000", "an expired": "expired"}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("whose", OUTSIDERS)
def test_outsiders_get_nothing(secured, folder, whose, asked):
    context = stranger(OUTSIDERS[whose] and folder / OUTSIDERS[whose])
    got, error = gets(address_of(secured), asked, context)
    assert got == b""
    assert isinstance(error, OSError)


@pytest.mark.parametrize(
    ("whose", "reason"), [("no", "certificate required"), ("a foreign", "unknown ca"), ("an expired", "expired")]
)
def test_outsiders_who_listen_are_told_why(secured, folder, whose, reason):
    context = stranger(OUTSIDERS[whose] and folder / OUTSIDERS[whose])
    with connect(address_of(secured), context, name_of(1)) as connection, pytest.raises(ssl.SSLError) as caught:
        connection.recv(1)
    assert reason in str(caught.value).lower().replace("_", " ")


@pytest.mark.parametrize("asked", ASKED)
def test_without_tls_one_gets_nothing(secured, asked):
    with connect(address_of(secured)) as connection:
        connection.sendall(asked)
        got = b""
        try:
            while piece := connection.recv(4096):
                got += piece
        except ConnectionResetError:
            pass
    # At most an alert of TLS, which says nothing of the run.
    assert got == b"" or (got[0] == 0x15 and len(got) == 7)


def test_an_older_version_of_tls_gets_nothing(secured, folder):
    context = stranger(home_of(folder / "run", 0))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    got, error = gets(address_of(secured), request(b"\1"), context)
    assert got == b""
    assert isinstance(error, OSError)


def test_with_the_right_certificate_one_is_answered(secured, folder):
    context = Keys.find(folder / "run", 0).client_context()
    said = speak(address_of(secured), request(b"\1"), context, name_of(1))
    assert (said.status, said.body[168:-8]) == (200, b"\2")
    said = speak(address_of(secured), head(0, first=b"GET /about HTTP/1.1"), context, name_of(1))
    assert json.loads(said.body)["run"] == RUN.hex()


def test_nobody_speaks_for_another(secured, folder):
    context = Keys.find(folder / "run", 2).client_context()
    said = speak(address_of(secured), request(b"\1", sender=0), context, name_of(1))
    assert said.status == 403
    assert said.words == "the certificate is node 2's, the message says it is node 0's"


def test_two_houses_with_keys(houses, secured, folder):
    asker = houses(0, size=3, keys=Keys.find(folder / "run", 0))
    asker.box.members.learn(str(secured.box.members.me))
    assert asker.box.ask(1, "topic", message()).data.tolist() == [2, 4, 6]


def test_a_house_with_foreign_keys_neither_asks_nor_answers(houses, secured, folder):
    asker = houses(0, size=3, keys=Keys.find(folder / "foreign", 0))
    asker.box.members.learn(str(secured.box.members.me))
    with pytest.raises(LostPeer, match="certificate verify failed"):
        asker.box.ask(1, "topic", message())
    secured.box.members.learn(str(asker.box.members.me))
    asker.box.answer("topic", doubled)
    with pytest.raises(LostPeer, match="certificate verify failed"):
        secured.box.ask(0, "topic", message())


def test_a_server_with_anothers_certificate_is_not_believed(houses, secured, folder):
    asker = houses(0, size=3, keys=Keys.find(folder / "run", 0))
    asker.box.members.learn(f"2={address_of(secured)}/5")
    with pytest.raises(LostPeer, match="certificate verify failed: Hostname mismatch"):
        asker.box.ask(2, "topic", message())


def test_nor_over_a_connection_that_is_open_already(houses, secured, folder):
    """It was checked for the node it was opened to; who answers there could say it is another."""
    asker = houses(0, size=3, keys=Keys.find(folder / "run", 0))
    asker.box.members.learn(str(secured.box.members.me))
    assert asker.box.ask(1, "topic", message()).data.tolist() == [2, 4, 6]
    asker.box.members.learn(f"2={address_of(secured)}/5")
    with pytest.raises(LostPeer, match="certificate verify failed: Hostname mismatch"):
        asker.box.ask(2, "topic", message())


# Where one may listen --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "a-machine.example"])
def test_without_keys_only_on_loopback(host):
    with pytest.raises(ValueError, match=f"listens on loopback only, not on {host}") as caught:
        ListenOn(host)
    assert "flockstep keys create DIR" in str(caught.value)
    assert "--insecure" in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3"])
def test_insecure_is_possible_and_said(host):
    assert not ip_address(host).is_loopback
    with pytest.warns(UserWarning, match=f"listens on {host} without keys: who reaches it can read and change"):
        ListenOn(host, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_nothing(host):
    assert ListenOn(host).keys is None


def test_with_keys_anywhere(folder):
    assert ListenOn("10.1.2.3", keys=Keys.find(folder / "run", 0)).host == "10.1.2.3"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_many_at_once_each_get_their_own_answer(listener, count):
    together = threading.Barrier(count)

    def ask(mark):
        together.wait(SECONDS)
        return [speak(address_of(listener), request(bytes([mark] * 9))).body[168:-8] for _ in range(5)]

    with ThreadPoolExecutor(count) as pool:
        for mark, found in enumerate(pool.map(ask, range(count))):
            assert found == [bytes([2 * mark] * 9)] * 5
