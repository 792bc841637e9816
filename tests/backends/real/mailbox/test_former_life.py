"""A node that is started anew on a machine whose clock was set back, or set right, goes on as a later life."""

import time

import pytest
from hostile import RUN

from flockstep.backends.real.membership.member_line import Member
from flockstep.backends.real.membership.members import Members
from flockstep.backends.real.security.keys import Keys, create
from flockstep.backends.real.security.line_signatures import LineSignatures
from flockstep.errors import LostPeer
from flockstep.message import NOTHING

DAY = 86_400 * 10**9
REAL = time.time_ns


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    create(folder, 3)
    return folder


@pytest.fixture(params=["with keys", "without"])
def start(request, houses, folder, monkeypatch):
    """Starts a node whose clock is so far ahead of the others'."""

    def start(rank, size=3, *, ahead=0, **how):
        keys = Keys.find(folder, rank) if request.param == "with keys" else None
        with monkeypatch.context() as clock:
            clock.setattr(time, "time_ns", lambda: REAL() + ahead)
            house = houses(rank, size, keys=keys, **how)
        house.box.answer("topic", lambda sender, message: NOTHING)
        return house

    return start


def me(house):
    return house.box.members.me


def meet(asker, asked):
    asker.box.members.learn(str(me(asked)))
    return works(asker, asked)


def works(asker, asked):
    asker.box.ask(me(asked).rank, "topic", NOTHING)
    return True


@pytest.mark.parametrize("days", [1, 20_000])
def test_a_clock_that_was_set_back(start, days):
    """By a day; and to 1970, as on machines that lost their battery."""
    other, first = start(0), start(1)
    assert meet(first, other)
    before = me(first)
    first.close()
    again = start(1, ahead=-days * DAY)
    assert me(again).incarnation < before.incarnation
    assert meet(again, other)
    assert me(again).incarnation > before.incarnation
    assert other.box.members.line(1) == str(me(again))
    assert works(other, again)


@pytest.mark.parametrize("days", [0.9, 2, 400])
def test_a_clock_that_was_ahead_and_was_set_right(start, days):
    other, first = start(0), start(1, ahead=int(days * DAY))
    assert meet(first, other)
    before = me(first)
    first.close()
    again = start(1)
    assert meet(again, other)
    assert me(again).incarnation > before.incarnation
    assert works(other, again)


def test_whose_clock_is_behind_takes_the_others_as_they_are(start):
    other, behind = start(0), start(1, ahead=-20_000 * DAY)
    assert meet(behind, other)
    assert works(other, behind)


def test_many_times_over(start):
    """Every life is later than the one before, however the clock goes."""
    other, lives = start(0), []
    for days in (5, 3, 4, -20, 3):
        node = start(1, ahead=days * DAY)
        assert meet(node, other)
        lives.append(me(node).incarnation)
        node.close()
    assert lives == sorted(set(lives))


def test_what_was_said_before_it_started_is_of_a_former_life(start):
    """From a store, or from whom a latecomer joins: it asks before it announces."""
    first = start(1)
    before = me(first)
    again = start(1, ahead=-DAY, said_before=f"{me(start(0))},{before}")
    assert me(again).incarnation > before.incarnation
    assert start(1, ahead=DAY, said_before=str(before)).box.members.me.incarnation > REAL() + DAY // 2


def test_a_twin_that_lives_keeps_the_name(start):
    """The older one, woken after another was started in its place, is refused as ever, and does not fight."""
    other, old = start(0), start(1)
    assert meet(old, other)
    new = start(1, ahead=DAY)
    assert meet(new, other)
    before = me(old)
    for _ in range(2):
        with pytest.raises(LostPeer, match=f"node 1 was started anew as incarnation {me(new).incarnation}"):
            works(old, other)
    assert me(old) == before
    assert works(new, other)


def test_another_node_where_the_former_life_was_is_no_twin(start):
    other, first = start(0), start(1)
    assert meet(first, other)
    port = int(me(first).address.rpartition(":")[2])
    first.close()
    start(2, port=port)
    again = start(1, ahead=-DAY)
    assert meet(again, other)


def test_what_others_make_up_is_no_former_life(folder):
    """With keys: nobody but the node itself makes it count up."""
    mine, liar = (LineSignatures(Keys.find(folder, rank), RUN) for rank in (1, 2))
    line = Member(1, "127.0.0.1:9", 10)
    members = Members(Member(1, "127.0.0.1:8", 5), 3, mine)
    lie = Member(1, line.address, 10, False, liar.sign(line.statement), liar.certificate)
    assert members.former(f"{line},{lie}") is None
    truth = Member(1, line.address, 10, False, mine.sign(line.statement), mine.certificate)
    assert members.former(f"{line},{truth},{lie}").statement == line.statement


@pytest.mark.parametrize(
    "text", ["", "junk", "0=h:1/9", "1=h:1/4", "1=here:1/5", f"1=h:1/{2**63 - 1}", f"1=h:1/{2**64 - 1}"]
)
def test_what_is_no_former_life(text):
    assert Members(Member(1, "here:1", 5), 3).former(text) is None


def test_two_lives_that_began_in_one_moment():
    members = Members(Member(1, "here:1", 5), 3)
    members.begin_after(members.former("1=elsewhere:1/5"))
    assert members.me.incarnation > 5


def test_lives_differ_by_what_counts_milliseconds():
    members = Members(Member(1, "here:1", 5), 3)
    members.begin_after(Member(1, "h:1", 10**18))
    assert members.me.incarnation // 10**6 > 10**12
