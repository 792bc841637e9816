"""Without keys: what third parties say of a node tells where one might look, and shuts nobody out."""

import pytest
from hostile import KNOCK, request, speak

from flockstep.backends.real.membership.member_line import Member
from flockstep.backends.real.membership.members import Members
from flockstep.errors import LostPeer
from flockstep.message import NOTHING

NOBODY = "127.0.0.1:9"


def view(rank=0, size=3):
    return Members(Member(rank, f"10.0.0.{rank}:7000", 1), size)


def me(house):
    return house.box.members.me


def tell(house, *lines, sender=2):
    words = request(b"", kind=KNOCK, sender=sender, peers=",".join(map(str, lines)).encode())
    return speak(me(house).address, words)


def works(asker, asked):
    asker.box.ask(me(asked).rank, "topic", NOTHING)
    return True


@pytest.fixture
def pair(two):
    for house in two:
        house.box.answer("topic", lambda sender, message: NOTHING)
    return two


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("later", [0, 1, 2**62])
def test_a_third_party_shuts_nobody_out(pair, later, left):
    asker, asked = pair
    lie = Member(0, NOBODY, min(me(asker).incarnation + later, 2**63 - 1), left)
    assert tell(asked, lie).status == 200
    assert asked.box.members.line(0) == str(me(asker))
    assert asked.box.members.address(0) == me(asker).address
    assert works(asker, asked)
    assert works(asked, asker)


def test_what_a_node_says_itself_counts(pair):
    _, asked = pair
    for line in (Member(2, NOBODY, 5), Member(2, NOBODY, 6), Member(2, NOBODY, 6, left=True)):
        assert tell(asked, line).status == 200
        assert asked.box.members.line(2) == str(line)
    assert tell(asked, Member(2, NOBODY, 5)).status == 200
    assert asked.box.members.line(2) == f"2={NOBODY}/6/left"


def test_a_founder_that_nobody_has_met_is_where_others_say():
    members = view()
    members.learn("1=a:1/5", 2)
    assert (members.address(1), members.incarnation(1), members.alive()) == ("a:1", 0, (1, 2))
    members.learn("1=b:1/4", 2)
    assert members.address(1) == "a:1"
    members.learn("1=b:1/6/left", 2)
    assert (members.address(1), members.all_have_left()) == ("b:1", False)
    members.learn("1=c:1/2", 1)
    assert (members.address(1), members.incarnation(1)) == ("c:1", 2)


def test_what_came_to_nothing_makes_room_for_what_others_say():
    members = view()
    members.learn(f"1=wrong:1/{2**63 - 1}", 2)
    members.lose(1, "nobody there")
    members.learn("1=right:1/5", 2)
    assert members.address(1) == "right:1"


def test_a_newer_address_is_where_to_look_once_a_node_is_lost_and_never_twice_in_vain():
    members = view()
    members.learn("1=first:1/5", 1)
    members.learn("1=other:1/6", 2)
    assert members.address(1) == "first:1"
    members.lose(1, "it hung up")
    assert members.address(1) == "other:1"
    members.not_at(1, "first:1")
    assert members.address(1) == "other:1"
    members.not_at(1, "other:1")
    assert members.address(1) == "first:1"


def test_what_others_say_is_not_passed_on():
    members = view()
    members.learn("1=a:1/5,7=b:1/5", 2)
    assert members.gossip() == members.everyone() == str(members.me)
    members.learn("7=b:1/5", 7)
    assert members.everyone() == f"{members.me},7=b:1/5"


@pytest.mark.slow
def test_phantoms_are_nobodys_peers_and_few():
    members = view()
    for first in range(0, 20_000, 100):
        members.learn(",".join(f"{rank}={NOBODY}/1" for rank in range(first + 3, first + 103)), 2)
    assert members.alive() == (1, 2)
    assert len(members.unmet()) == 1000
    # The room is for hearsay alone: a newcomer that speaks for itself comes in.
    members.learn("50000=here:1/1", 50000)
    assert members.alive() == (1, 2, 50000)


@pytest.mark.slow
def test_a_newcomer_that_others_tell_of_is_met(houses):
    """By a knock at its door; one that was made up is looked for once, and forgotten."""
    founder, newcomer = houses(0, 2, seconds=3.0), houses(7, 2, seconds=3.0)
    members = founder.box.members
    assert tell(founder, f"7={me(newcomer).address}/1,8={NOBODY}/1,9={me(newcomer).address}/1", sender=1).status == 200
    assert members.alive() == (1,)
    with members.changed:
        assert members.changed.wait_for(lambda: 7 in members.alive(), 60)
    assert members.line(7) == str(me(newcomer))
    with newcomer.box.members.changed:
        assert newcomer.box.members.changed.wait_for(lambda: 0 in newcomer.box.members.alive(), 60)
    with members.changed:
        assert members.changed.wait_for(lambda: not members.unmet(), 60)
    assert members.alive() in ((1, 7), (7,))
    assert not {8, 9} & set(members.lost())


def test_newcomers_are_met_at_once_and_phantoms_one_at_a_time(houses):
    """With a timeout so long that no sign of life is due while this test runs."""
    founder, newcomers = houses(0, 2, seconds=20_000.0), [houses(rank, 2) for rank in range(5, 9)]
    members = founder.box.members
    # Whose connections end is looked for.
    members.learn(str(me(houses(1, 2))))
    assert tell(founder, *(f"{me(house).rank}={me(house).address}/1" for house in newcomers), sender=1).status == 200
    with members.changed:
        assert members.changed.wait_for(lambda: {5, 6, 7, 8} <= set(members.alive()), 60)
    assert tell(founder, *(f"{rank}={NOBODY}/1" for rank in range(10, 20)), sender=1).status == 200
    with members.changed:
        assert members.changed.wait_for(lambda: len(members.unmet()) == 9, 60)
    assert tell(founder, *(f"{rank}={NOBODY}/1" for rank in range(20, 30)), sender=1).status == 200
    assert len(members.unmet()) == 19
    assert members.lost() == {}


def test_a_node_that_moved_is_found_where_others_say(houses, pair):
    """Started anew elsewhere, and known by hearsay alone: the old address comes to nothing first."""
    asker, asked = pair
    assert works(asker, asked)
    asked.close()
    again = houses(1)
    again.box.answer("topic", lambda sender, message: NOTHING)
    asker.box.members.learn(str(me(again)), 2)
    with pytest.raises(LostPeer):
        works(asker, again)
    assert works(asker, again)
    assert asker.box.members.line(1) == str(me(again))
