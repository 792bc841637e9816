"""A handler that was replaced answers no more, even if a question had reached the door before."""

import torch

from flockstep.backends.real.collective.threads import Hub, ThreadFabric
from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.message import Message


def note(word):
    data = torch.tensor(list(word.encode()), dtype=torch.uint8)
    return Message(data, "note", (len(word),), torch.uint8)


def words(message):
    return bytes(message.data.tolist()).decode()


class Door:
    """A lock, before which something happens."""

    def __init__(self, before_entering):
        self._before_entering = before_entering

    def acquire(self, timeout=None):
        self._before_entering()
        return True

    def release(self):
        pass

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


def test_between_threads():
    hub = Hub(2, timeout=20)
    asker, answerer = ThreadFabric(hub, 0), ThreadFabric(hub, 1)
    answerer.answer("who", lambda peer, message: note("the first"))
    hub.handling[1] = Door(lambda: answerer.answer("who", lambda peer, message: note("the second")))
    assert words(asker.ask(1, "who", note("?"))) == "the second"


def test_between_mailboxes():
    houses = [open_endpoint(bytes(16), rank, 2, Limits(20), ListenOn()) for rank in range(2)]
    try:
        asker, answerer = (house.box for house in houses)
        asker.members.learn(str(answerer.members.me))
        answerer.answer("who", lambda peer, message: note("the first"))
        answerer.handling = Door(lambda: answerer.answer("who", lambda peer, message: note("the second")))
        assert words(asker.ask(1, "who", note("?"))) == "the second"
    finally:
        for house in houses:
            house.close()
