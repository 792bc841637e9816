import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hostile import RUN

from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits


@pytest.fixture
def houses():
    """Opens houses, and closes them when the test is over."""
    opened = []

    def open_one(rank, size=2, *, run=RUN, seconds=20.0, said_before="", **site):
        site = ListenOn(**site)
        opened.append(open_endpoint(run, rank, size, Limits(seconds), site, said_before=said_before))
        return opened[-1]

    yield open_one
    for house in opened:
        house.close()


@pytest.fixture
def two(houses):
    """Two houses that know each other."""
    first, second = houses(0), houses(1)
    first.box.members.learn(str(second.box.members.me))
    second.box.members.learn(str(first.box.members.me))
    return first, second
