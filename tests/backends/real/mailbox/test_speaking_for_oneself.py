"""With keys, over real connections: what one member can say of another, and what comes of it (nothing)."""

import json
import time

import pytest
from hostile import KNOCK, RUN, head, request, speak

from flockstep.backends.real.membership.member_line import Member
from flockstep.backends.real.membership.members import Members
from flockstep.backends.real.security.keys import Keys, create, name_of
from flockstep.backends.real.security.line_signatures import LineSignatures
from flockstep.message import NOTHING

SIZE = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    create(folder, SIZE + 2)
    return folder


@pytest.fixture
def keys(folder):
    return [Keys.find(folder, rank) for rank in range(SIZE + 2)]


@pytest.fixture
def trio(houses, keys):
    """Three nodes with keys that know each other. Node 2 is the one that will lie."""
    three = [houses(rank, SIZE, keys=keys[rank]) for rank in range(SIZE)]
    for house in three:
        house.box.members.learn(",".join(str(other.box.members.me) for other in three))
        house.box.answer("topic", lambda sender, message: NOTHING)
    return three


def me(house):
    return house.box.members.me


def tell(house, lines, keys, *, sender=2, kind=KNOCK):
    """Node 2, by its own certificate, says something to a house."""
    words = request(b"", kind=kind, sender=sender, peers=",".join(map(str, lines)).encode())
    return speak(me(house).address, words, keys[sender].client_context(), name_of(me(house).rank))


def signed(keys, rank, address, incarnation, *, left=False, run=RUN, by=None):
    """A line about a node, signed by it, or by another."""
    signatures = LineSignatures(keys[rank if by is None else by], run)
    line = Member(rank, address, incarnation, left)
    return Member(rank, address, incarnation, left, signatures.sign(line.statement), signatures.certificate)


def about(house, keys):
    said = speak(
        me(house).address, head(0, first=b"GET /about HTTP/1.1"), keys[2].client_context(), name_of(me(house).rank)
    )
    return json.loads(said.body)


def works(asker, asked):
    asker.box.ask(me(asked).rank, "topic", NOTHING)
    return True


def believed(house, rank):
    return Member.read(house.box.members.line(rank)).statement


def test_the_control_a_signed_line_is_believed_whoever_brings_it(trio, keys):
    assert tell(trio[1], [signed(keys, 3, "127.0.0.1:9", 5)], keys).status == 200
    assert trio[1].box.members.address(3) == "127.0.0.1:9"
    assert 3 in trio[1].box.members.alive()
    assert tell(trio[1], [signed(keys, 3, "127.0.0.1:9", 5, left=True)], keys).status == 200
    assert believed(trio[1], 3).endswith("/5/left")


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("forgery", ["unsigned", "signed by the liar", "with its certificate", "of another statement"])
def test_nobody_shuts_another_out(trio, keys, forgery, left):
    """By an incarnation that it does not have, or by a departure."""
    before, where, later = me(trio[0]), "127.0.0.1:9", me(trio[0]).incarnation + 10**9
    if left:
        where, later = before.address, before.incarnation
    statement = Member(0, where, later, left)
    lies = {
        "unsigned": statement,
        "signed by the liar": signed(keys, 0, where, later, left=left, by=2),
        "with its certificate": Member(
            0, where, later, left, signed(keys, 0, where, later, left=left, by=2).signature, before.certificate
        ),
        "of another statement": Member(0, where, later, left, before.signature, before.certificate),
    }
    assert tell(trio[1], [lies[forgery]], keys).status == 200
    assert believed(trio[1], 0) == before.statement
    assert trio[1].box.members.disbelieved == about(trio[1], keys)["disbelieved"] == 1
    assert works(trio[0], trio[1])
    assert works(trio[1], trio[0])


def test_nor_by_a_reply(trio, keys):
    """The liar answers, and says more than it knows."""
    lie = Member(0, "127.0.0.1:9", me(trio[0]).incarnation + 1)
    trio[2].box.members.gossip = lambda shown=None: f"{me(trio[2])},{lie}"
    assert works(trio[1], trio[2])
    assert believed(trio[1], 0) == me(trio[0]).statement
    assert works(trio[0], trio[1])


@pytest.mark.slow
def test_there_are_no_phantoms(trio, keys):
    for first in range(0, 2000, 100):
        lines = [Member(SIZE + rank, "127.0.0.1:9", 1) for rank in range(first, first + 100)]
        assert tell(trio[1], lines, keys).status == 200
    assert tell(trio[1], [signed(keys, 7, "127.0.0.1:9", 1, by=2)], keys).status == 200
    assert trio[1].box.members.alive() == (0, 2)
    assert trio[1].box.members.unmet() == []
    assert trio[1].box.members.disbelieved == 2001
    assert len(about(trio[1], keys)["peers"].split(",")) == SIZE


def test_an_old_line_said_again_changes_nothing(trio, keys):
    first, second = signed(keys, 3, "127.0.0.1:8", 5, left=True), signed(keys, 3, "127.0.0.1:9", 6)
    assert tell(trio[1], [second], keys).status == 200
    assert tell(trio[1], [first], keys).status == 200
    assert believed(trio[1], 3) == second.statement


def test_a_line_of_another_run_says_nothing_in_this(trio, keys):
    assert tell(trio[1], [signed(keys, 3, "127.0.0.1:9", 5, run=bytes(16))], keys).status == 200
    later = me(trio[0]).incarnation + 1
    assert tell(trio[1], [signed(keys, 0, "127.0.0.1:9", later, run=bytes(16))], keys).status == 200
    assert trio[1].box.members.address(3) is None
    assert believed(trio[1], 0) == me(trio[0]).statement


def test_who_passes_on_what_it_was_told_is_not_refused_for_it(trio, keys):
    """An honest node between a liar and an honest node."""
    lies = [Member(rank, "127.0.0.1:9", 2**62) for rank in (0, 5, 6)]
    assert tell(trio[1], [*lies, signed(keys, 3, "127.0.0.1:9", 5)], keys).status == 200
    for _ in range(3):
        assert works(trio[1], trio[0])
    assert trio[0].box.members.disbelieved == 0
    assert trio[0].box.members.address(3) == "127.0.0.1:9"


def test_a_certificate_goes_over_a_connection_once(trio):
    members, shown = trio[1].box.members, set()
    first, second = members.gossip(shown), members.gossip(shown)
    assert first.count(";") == 2 * SIZE
    assert second.count(";") == SIZE
    assert len(second) <= SIZE * 150 < len(first) <= SIZE * 900


def test_a_head_has_room_for_every_message(keys, folder, tmp_path):
    """At most four certificates at once, and the rest with the next messages."""
    count = 40
    create(folder, count)
    everyone = [
        Members(Member(rank, f"{'h' * 255}:65535", time.time_ns()), count, LineSignatures(Keys.find(folder, rank), RUN))
        for rank in range(count)
    ]
    teller, hearer, shown = everyone[0], Members(everyone[1].me, count, LineSignatures(keys[1], RUN)), set()
    for other in everyone:
        teller.learn(str(other.me))
    while any(hearer.address(rank) is None for rank in range(count)):
        text = teller.gossip(shown)
        assert text.startswith("0=")
        assert len(text) <= 10_000
        hearer.learn(text, 0)
    assert hearer.disbelieved == 0
    assert len(shown) == count


def test_what_a_store_says_without_a_signature_is_only_an_address(houses, keys, trio):
    """A store is not encrypted: whoever can write there can misdirect, and shut nobody out."""
    members = trio[1].box.members
    members.learn(f"0=127.0.0.1:9/{2**62}/left")
    assert believed(trio[1], 0) == me(trio[0]).statement
    assert works(trio[1], trio[0])
    members.learn(f"4=127.0.0.1:9/{2**62}")
    assert members.address(4) == "127.0.0.1:9"
    assert members.incarnation(4) == 0
    assert "4=" not in members.everyone()
