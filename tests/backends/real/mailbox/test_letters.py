"""Letters nobody takes are bounded: the receiver's pile, the sender's pile, and who is told."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flockstep.backends.real.mailbox import letters
from flockstep.backends.real.mailbox.letters import LEAST_LETTERS, MOST_BYTES
from flockstep.errors import LostPeer
from flockstep.message import NOTHING, Message

SECONDS = 60
MANY = 12


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A bound of four letters of this file's."""
    monkeypatch.setattr(letters, "MOST_BYTES", 4 * (letter(0).data.numel() + letters._BESIDES))


@pytest.fixture
def aside():
    with ThreadPoolExecutor() as pool:
        yield pool.submit


@pytest.fixture
def pair(houses):
    def pair(seconds):
        first, second = houses(0, seconds=seconds), houses(1, seconds=seconds)
        first.box.members.learn(str(second.box.members.me))
        second.box.members.learn(str(first.box.members.me))
        return first.box, second.box

    return pair


def letter(number, nbytes=100_000):
    return Message(torch.full((nbytes,), number % 256, dtype=torch.uint8), "raw", (nbytes,), torch.uint8)


def number_of(message):
    return int(message.data[0])


def send_all(box, peer, count=MANY):
    for number in range(count):
        box.send(peer, letter(number))


def waiting(box, peer):
    """What waits in a box of a peer's letters, and for it."""
    kept = box._letters
    return len(kept._in[peer]), len(kept._out.get(peer, ()))


def test_the_documented_bound():
    assert (MOST_BYTES, LEAST_LETTERS) == (64 * 2**20, 2)


def test_a_sender_waits_until_the_receiver_takes_and_nothing_is_lost_or_turned_round(pair, aside):
    first, second = pair(SECONDS)
    sending = aside(send_all, first, 1)
    assert [number_of(second.receive(0)) for _ in range(MANY)] == list(range(MANY))
    sending.result(SECONDS)


@pytest.mark.slow
def test_who_does_not_take_letters_is_named_and_keeps_no_more_than_the_bound(pair):
    first, second = pair(5.0)
    with pytest.raises(LostPeer, match=r"node 0 lost node 1 in send: it has taken no letter in 5 s, and 4 letters"):
        send_all(first, 1)
    assert waiting(second, 0)[0] <= 4
    assert waiting(first, 1)[1] <= 4
    # It lives, and what it has not been sent anew is still in order.
    first.knock(1)
    assert [number_of(second.receive(0)) for _ in range(8)] == list(range(8))


def test_both_may_send_as_much_as_the_bound_before_they_receive(pair, aside):
    first, second = pair(SECONDS)
    both = threading.Barrier(2)

    def swap(box, peer):
        send_all(box, peer, 4)
        both.wait(SECONDS)
        return [number_of(box.receive(peer)) for _ in range(4)]

    assert [each.result(SECONDS) for each in [aside(swap, first, 1), aside(swap, second, 0)]] == [list(range(4))] * 2


def test_so_may_two_with_letters_longer_than_the_bound(pair, aside):
    first, second = pair(SECONDS)
    both = threading.Barrier(2)

    def swap(box, peer):
        for number in range(LEAST_LETTERS):
            box.send(peer, letter(number, 1_000_000))
        both.wait(SECONDS)
        return [number_of(box.receive(peer)) for _ in range(LEAST_LETTERS)]

    for each in [aside(swap, first, 1), aside(swap, second, 0)]:
        assert each.result(SECONDS) == list(range(LEAST_LETTERS))


@pytest.mark.slow
def test_empty_letters_are_bounded_too(pair):
    first, second = pair(5.0)
    with pytest.raises(LostPeer, match="it has taken no letter"):
        while True:
            first.send(1, NOTHING)
    assert sum(waiting(second, 0)) + sum(waiting(first, 1)) < 2000


def test_one_who_waits_to_send_is_told_of_the_closing(pair, aside):
    first, _ = pair(100_000.0)
    sending = aside(send_all, first, 1)
    while waiting(first, 1)[1] < 4:
        first.knock(1)
    first.close()
    with pytest.raises(LostPeer, match="this mailbox is closed"):
        sending.result(SECONDS)
