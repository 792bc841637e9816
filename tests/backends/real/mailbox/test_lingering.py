"""A node whose loop has ended answers as long as anybody who lives still trains."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.mail_fabric import MailFabric
from flockstep.backends.real.membership import lingering
from flockstep.errors import Deadlock
from flockstep.message import Message

SHORT, LONG = 0.3, 20.0
"""How long leaving may wait, and how long a question may take, on however busy a machine."""
RUN = bytes(16)
QUESTION = Message(torch.zeros(3, dtype=torch.uint8), "raw", (3,), torch.uint8)


@pytest.fixture
def fabrics():
    made = []

    def make(rank, size=2):
        fabric = MailFabric(rank, size, SHORT, partial(open_endpoint, RUN, rank, size, Limits(LONG), ListenOn()))
        fabric.mailbox()
        made.append(fabric)
        return fabric

    yield make
    for fabric in made:
        fabric.close()


@pytest.fixture
def aside():
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def meet(*fabrics):
    for one in fabrics:
        for other in fabrics:
            if one is not other:
                one.mailbox().members.learn(str(other.mailbox().members.me))


def after_several_timeouts(first, second):
    """The second node lives and trains all the while."""
    end = time.monotonic() + 4 * SHORT
    while time.monotonic() < end:
        second.mailbox().knock(0)


@pytest.mark.slow
def test_as_long_as_a_slower_peer_trains(fabrics, aside):
    first, second = fabrics(0), fabrics(1)
    first.answer("topic", lambda peer, message: message)
    meet(first, second)
    leaving = aside(first.leave, {})
    after_several_timeouts(first, second)
    assert not leaving.done()
    assert second.mailbox().ask(0, "topic", QUESTION).nbytes == QUESTION.nbytes
    second.leave({})
    leaving.result(60)


def test_but_not_for_one_who_was_lost(fabrics, aside):
    first, second = fabrics(0), fabrics(1)
    meet(first, second)
    leaving = aside(first.leave, {})
    second.mailbox().knock(0)
    second.close()
    leaving.result(60)


def test_nor_for_ever_for_one_who_never_came(fabrics):
    with pytest.raises(Deadlock, match=r"node 0 has returned and waited 0\.3 s for node 1, which never came"):
        fabrics(0).leave({})


@pytest.mark.slow
def test_one_who_never_came_does_not_end_the_answering_while_another_trains(fabrics, aside):
    first, second = fabrics(0, size=3), fabrics(1, size=3)
    meet(first, second)
    leaving = aside(first.leave, {})
    after_several_timeouts(first, second)
    assert not leaving.done()
    second.close()
    with pytest.raises(Deadlock, match="node 2, which never came"):
        leaving.result(60)


@pytest.mark.slow
def test_who_waits_says_so_once(fabrics, aside, caplog, monkeypatch):
    monkeypatch.setattr(lingering, "_UNREMARKABLE", 0.01)
    caplog.set_level(logging.WARNING, "flockstep")
    first, second = fabrics(0), fabrics(1)
    meet(first, second)
    leaving = aside(first.leave, {})
    after_several_timeouts(first, second)
    second.leave({})
    leaving.result(60)
    said = [record.message for record in caplog.records]
    assert said.count("node 0 has ended its loop, and answers until the others have, too: node 1") == 1
