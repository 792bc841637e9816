"""Who is there: what counts of two lines, what is told, and that in the end everybody knows everybody."""

import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flockstep.backends.real.membership.member_line import Member
from flockstep.backends.real.membership.members import Members


def member(rank, incarnation=1, *, left=False, address=None):
    return Member(rank, address or f"10.0.0.{rank}:7000", incarnation, left)


def view(rank=0, size=5, **line):
    return Members(member(rank, **line), size)


def line(members, rank):
    """What is known of a node, as it is told."""
    return next((each for each in members.gossip().split(",") if each.startswith(f"{rank}=")), None)


@pytest.mark.parametrize(
    "text",
    ["0=127.0.0.1:1/0", "7=[::1]:65535/18446744073709551615", "1048575=a-host_1.example:80/3/left"],
)
def test_a_line_there_and_back(text):
    assert str(Member.read(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "1=/1",
        "1=:80/1",
        "=h:1/1",
        "-1=h:1/1",
        "1=h/1",
        "1=h:1",
        "1=h:1/",
        "1=h:1/1/gone",
        "1=h:1/1/left/left",
        "1=h:1/-1",
        "1=h:0/1",
        "1=h:65536/1",
        "1=h:99999/1",
        "1=h:123456/1",
        "1=h:1/18446744073709551616",
        "1048576=h:1/1",
        "99999999=h:1/1",
        f"1={'h' * 256}:1/1",
        "1=h o:1/1",
        "1=h\n:1/1",
        "1=h:1/1\n",
        "\u0661=h:1/1",
        "1=hö:1/1",
        "1=h:1/\u0661",
    ],
)
def test_what_is_not_a_line(text):
    with pytest.raises(ValueError, match="not a line about a node"):
        Member.read(text)


def test_a_bad_line_changes_nothing_not_even_by_the_good_ones_before_it():
    members = view()
    with pytest.raises(ValueError, match="not a line about a node: 'x'"):
        members.learn(f"{member(1)},x")
    assert members.address(1) is None
    with pytest.raises(ValueError, match="too long"):
        members.learn(",".join([str(member(1))] * 70_000))
    assert members.address(1) is None


@pytest.mark.parametrize(
    ("known", "told", "stays"),
    [
        (None, "1=a:1/0", "1=a:1/0"),
        ("1=a:1/5", "1=b:2/6", "1=b:2/6"),
        ("1=a:1/5", "1=b:2/4", "1=a:1/5"),
        ("1=a:1/5", "1=b:2/5", "1=a:1/5"),
        ("1=a:1/5", "1=a:1/5/left", "1=a:1/5/left"),
        ("1=a:1/5/left", "1=a:1/5", "1=a:1/5/left"),
        ("1=a:1/5/left", "1=b:2/6", "1=b:2/6"),
        ("1=a:1/5", "1=a:1/4/left", "1=a:1/5"),
        ("1=a:1/5/left", "1=b:1/4/left", "1=a:1/5/left"),
    ],
)
def test_of_two_lines(known, told, stays):
    members = view()
    members.learn(known or "")
    members.learn(told)
    assert line(members, 1) == stays


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_lines_does_not_matter(order):
    members = view()
    members.learn(",".join(["1=a:1/5", "1=b:2/6", "1=b:2/6/left", "1=a:1/5/left"][::order]))
    assert line(members, 1) == "1=b:2/6/left"


def test_nobody_else_speaks_for_this_node():
    members = view(rank=2, incarnation=5)
    members.learn("2=elsewhere:1/99,2=10.0.0.2:7000/5/left")
    assert members.me == member(2, 5)
    assert line(members, 2) == "2=10.0.0.2:7000/5"
    members.leave()
    assert members.me == member(2, 5, left=True)
    assert members.gossip() == "2=10.0.0.2:7000/5/left"


@pytest.mark.parametrize("size", [1, 2, 5])
def test_those_never_heard_of_count_as_alive(size):
    members = view(rank=size - 1, size=size)
    others = tuple(range(size - 1))
    assert members.alive() == others
    assert all(members.address(other) is None for other in others)
    assert members.lost() == {}


@pytest.mark.parametrize("size", [1, 2, 5])
def test_alive_lost_and_heard_again(size):
    members = view(size=size)
    for rank in range(1, size):
        members.lose(rank, f"reason {rank}")
        assert members.alive() == tuple(range(rank + 1, size))
    assert members.lost() == {rank: f"reason {rank}" for rank in range(1, size)}
    for rank in range(1, size):
        members.heard(rank)
        assert rank in members.alive()
    assert members.lost() == {}


def test_who_joined_later_is_alive_too():
    members = view(size=2)
    members.learn(str(member(7)))
    assert members.alive() == (1, 7)


def test_a_new_incarnation_of_the_lost_is_alive_the_same_one_is_not():
    members = view()
    members.learn(str(member(1, 5)))
    members.lose(1, "it hung up")
    members.learn(str(member(1, 5)))
    members.learn(str(member(1, 5, left=True)))
    assert members.lost() == {1: "it hung up"}
    members.learn(str(member(1, 6)))
    assert members.lost() == {}


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_have_left(size):
    members = view(size=size)
    for rank in range(1, size):
        assert not members.all_have_left()
        if rank % 2:
            members.learn(str(member(rank, left=True)))
        else:
            members.lose(rank, "died")
    assert members.all_have_left()


@pytest.mark.parametrize("change", ["learn", "leave", "lose", "heard"])
def test_whoever_waits_is_told_of_changes(change):
    members = view()
    members.lose(3, "gone")
    waiting = threading.Event()

    def wait():
        with members.changed:
            waiting.set()
            return members.changed.wait(60)

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(wait)
        assert waiting.wait(60)
        # The lock is free only once the other waits.
        {
            "learn": lambda: members.learn(str(member(1))),
            "leave": members.leave,
            "lose": lambda: members.lose(2, "died"),
            "heard": lambda: members.heard(3),
        }[change]()
        assert told.result(60)


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_what_is_told_stays_short_and_begins_with_the_teller(size):
    host = "h" * 255
    now = time.time_ns()
    members = Members(Member(0, f"{host}:65535", now), size)
    for rank in range(1, size):
        members.learn(f"{rank}={host}:65535/{now}/left")
    for _ in range(20):
        text = members.gossip()
        lines = text.split(",")
        ranks = [int(each.partition("=")[0]) for each in lines]
        assert len(lines) == len(set(ranks)) == min(size, 16)
        assert ranks[0] == 0
        assert len(text) <= 8192
        view(rank=size, size=size).learn(text)


def test_the_newest_news_is_always_told():
    members = view(size=40)
    for rank in range(1, 40):
        members.learn(str(member(rank)))
    for rank in (3, 17):
        members.learn(str(member(rank, 2)))
    for _ in range(20):
        assert line(members, 3) == str(member(3, 2))
        assert line(members, 17) == str(member(17, 2))


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_in_the_end_everybody_knows_everybody(size):
    """Each knows the next one only, and now and then one asks another it knows of."""
    rng = random.Random(size)
    random.seed(size)
    everyone = [view(rank=rank, size=size, incarnation=rank + 1) for rank in range(size)]
    for rank, members in enumerate(everyone):
        members.learn(str(everyone[(rank + 1) % size].me))
    for _ in range(size):
        for asker in everyone:
            known = [rank for rank in asker.alive() if asker.address(rank)]
            if known:
                asked = everyone[rng.choice(known)]
                asked.learn(asker.gossip())
                asker.learn(asked.gossip())
    everyone[-1].leave()
    for members in everyone:
        assert [members.incarnation(rank) for rank in range(size)] == [rank + 1 for rank in range(size)]
        assert [members.address(rank) for rank in range(size)] == [member(rank).address for rank in range(size)]


def test_a_line_is_never_missing_while_it_is_written_anew():
    members = view(rank=0, incarnation=9)
    members.learn(str(member(1, 1)))
    stop = threading.Event()

    def look():
        while not stop.is_set():
            assert (members.me.incarnation, members.me.rank) == (9, 0)
            assert members.address(1)
            assert members.incarnation(1) >= 1

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            looking = [pool.submit(look) for _ in range(2)]
            for incarnation in range(2, 10_000):
                members.leave()
                if incarnation % 10 == 0:
                    members.learn(str(member(1, incarnation)))
            stop.set()
            for each in looking:
                each.result(60)
    finally:
        stop.set()
        sys.setswitchinterval(before)


@pytest.mark.parametrize("incarnation", [2**63, 2**64 - 1])
def test_a_number_that_leaves_no_later_one_is_refused_and_changes_nothing(incarnation):
    members = view(rank=0, size=3)
    with pytest.raises(ValueError, match="node 2 is said to have started after the year 2262"):
        members.learn(f"1=here:1/5,2=evil:1/{incarnation}")
    assert members.address(1) is None
    assert members.address(2) is None


def test_a_run_has_only_so_many_nodes():
    """Who comes after them is left out; whoever tells of it, perhaps without knowing, is not refused for that."""
    members = view(rank=0, size=3)
    members.learn(",".join(f"{rank}=here:1/5" for rank in range(1, 10_011)))
    assert members.alive() == tuple(range(1, 10_000))
    assert members.disbelieved == 11
    members.learn("9999=here:1/6")
    assert members.incarnation(9999) == 6


def test_a_clock_that_is_far_ahead_is_nobodys_business():
    """Whose clock is wrong, one cannot know: it may be this node's own."""
    members = view(rank=0, size=3)
    ahead = time.time_ns() + 400 * 86400 * 10**9
    members.learn(f"1=here:1/{ahead}")
    assert members.incarnation(1) == ahead
