"""Numbers of nodes that come to a run under way: no two get one, whoever dies meanwhile."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile import RUN, connect, read_response, speak

import flockstep as fs
from flockstep.backends.real.join import late_join
from flockstep.backends.real.join.claim import Claim, asking
from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.identity_query import ask_identity
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.security.keys import Keys, create, home_of
from flockstep.errors import LostPeer

SECONDS = 20.0
FOUNDERS = 3


@pytest.fixture
def flock():
    """Opens members that know each other, with keys or without."""
    opened = []

    def open_one(rank, size=FOUNDERS, keys=None):
        house = open_endpoint(RUN, rank, size, Limits(SECONDS), ListenOn(keys=keys))
        for other in opened:
            house.box.members.learn(str(other.box.members.me))
            other.box.members.learn(str(house.box.members.me))
        opened.append(house)
        return house

    yield open_one
    for house in opened:
        house.close()


@pytest.fixture
def members(flock):
    return [flock(rank) for rank in range(FOUNDERS)]


@pytest.fixture
def told(monkeypatch):
    """Sets the environment of a node that joins."""
    for name in ("RANK", "WORLD_SIZE", "FLOCKSTEP_KEYS", "FLOCKSTEP_JOIN", "FLOCKSTEP_HOST", "FLOCKSTEP_PORT"):
        monkeypatch.delenv(name, raising=False)
    late_join._place.cache_clear()

    def tell(house, **variables):
        monkeypatch.setenv("FLOCKSTEP_JOIN", address_of(house))
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    yield tell
    late_join._place.cache_clear()


def address_of(house):
    return house.box.members.me.address


def claim_at(house, *, ask=None, allowed=None):
    identity = ask_identity(address_of(house), None, SECONDS)
    return Claim(identity, ask or asking(identity, None), allowed)


def test_the_next_that_nobody_has(members):
    assert claim_at(members[1]).settle() == FOUNDERS


def test_many_who_come_at_once_get_numbers_of_their_own(members):
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda i: claim_at(members[i % FOUNDERS]).settle(), range(8)))
    assert len(set(numbers)) == 8
    assert min(numbers) == FOUNDERS


def test_a_number_is_kept_when_asked_for_again(members):
    claim = claim_at(members[0])
    number = claim.settle()
    assert claim.settle(number) == number


@pytest.mark.parametrize("heard_by_first", [0, 1, 2])
def test_the_lowest_member_may_die_in_the_middle(members, heard_by_first):
    """After so many answers to the first, the lowest dies, and a second comes; then the first goes on asking."""
    answers, second = [], []
    over_the_network = asking(ask_identity(address_of(members[0]), None, SECONDS), None)

    def ask(address, number, token):
        if len(answers) == heard_by_first and not second:
            members[0].close()
            second.append(claim_at(members[2]).settle())
        answers.append(over_the_network(address, number, token))
        return answers[-1]

    first = claim_at(members[1], ask=ask).settle()
    assert {first, *second} <= {FOUNDERS, FOUNDERS + 1}
    assert first != second[0]


def test_promises_are_handed_on_to_who_comes_in(members, flock):
    waiting, coming = claim_at(members[0]), claim_at(members[1])
    number, other = waiting.settle(), coming.settle()
    late = flock(other, FOUNDERS)
    late.box.desk.numbers.learn(coming.promised)
    for house in members:
        house.close()
    assert claim_at(late).settle() not in (number, other)


def test_whose_number_was_taken_by_name_meanwhile_gets_another(members, flock, told):
    told(members[0])
    assert fs.rank() == FOUNDERS
    # With --rank, by somebody who did not ask.
    flock(FOUNDERS)
    fabric = late_join.join_late().make_fabric(True, None)
    assert (late_join.join_late().rank, fabric.newcomer) == (FOUNDERS + 1, True)
    assert late_join.join_late().size == FOUNDERS + 2


def test_with_nobody_left_to_ask_it_says_so(members):
    claim = claim_at(members[0])
    for house in members:
        house.close()
    with pytest.raises(LostPeer, match="none of the nodes of the run that is to be joined answers any more"):
        claim.settle()


@pytest.mark.parametrize(
    "what", [b"POST /number/3", b"POST /number/3/abc", b"POST /number/1048576/" + b"a" * 32, b"POST /number/x/y"]
)
def test_what_is_no_question_for_a_number_is_refused(members, what):
    said = speak(address_of(members[0]), what + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (said.status, "a number is asked for as" in said.words or "there is nothing" in said.words) == (404, True)


def test_a_house_promises_no_end_of_numbers(members, monkeypatch):
    monkeypatch.setattr("flockstep.backends.real.membership.numbers._MOST_PROMISES", 2)
    with connect(address_of(members[0])) as connection:
        statuses = []
        for number in (5, 6, 7):
            connection.sendall(b"POST /number/%d/%s HTTP/1.1\r\nhost: x\r\n\r\n" % (number, b"a" * 32))
            statuses.append(read_response(connection).status)
    assert statuses == [200, 200, 507]


# With keys --------------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path):
    create(tmp_path / "keys", 6)
    return tmp_path / "keys"


@pytest.fixture
def secured(keys, flock):
    return [flock(rank, keys=Keys.find(keys, rank)) for rank in range(FOUNDERS)]


def test_the_certificate_names_the_rank(secured, keys, told):
    told(secured[0], FLOCKSTEP_KEYS=home_of(keys, 5))
    assert fs.rank() == 5


def test_even_that_of_one_who_was_here_before(secured, keys, told):
    told(secured[0], FLOCKSTEP_KEYS=home_of(keys, 1))
    assert fs.rank() == 1


def test_of_several_the_lowest_that_nobody_has_or_had(secured, keys, told):
    secured[1].close()
    told(secured[0], FLOCKSTEP_KEYS=keys)
    assert fs.rank() == FOUNDERS


def test_two_with_one_folder_get_two_of_its_numbers(secured, keys, told):
    told(secured[0], FLOCKSTEP_KEYS=keys)
    assert fs.rank() == FOUNDERS
    late_join._place.cache_clear()
    assert fs.rank() == FOUNDERS + 1


def test_where_none_is_left_it_says_what_to_do(tmp_path, flock, told):
    create(tmp_path, 2)
    house = flock(0, 2, Keys.find(tmp_path, 0))
    told(house, FLOCKSTEP_KEYS=tmp_path)
    with pytest.raises(ValueError, match=r"the keys are of nodes 0, 1, who are or were in this run\n.*--rank"):
        fs.rank()
    told(house, RANK=1)
    assert fs.rank() == 1


def test_an_empty_folder_is_said_to_be_one(secured, tmp_path, told):
    (tmp_path / "none").mkdir()
    told(secured[0], FLOCKSTEP_KEYS=tmp_path / "none")
    with pytest.raises(ValueError, match="there are no keys in"):
        fs.rank()
