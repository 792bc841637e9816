"""A server's own node and its handlers see the model one after the other."""

import threading
from types import SimpleNamespace

import pytest
import torch

from flockstep.codecs.raw import Raw
from flockstep.parts.push_server import Server


def outcome(coroutine):
    """Of one that waits for nothing."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value


def test_model_and_version_are_of_one_moment():
    """A push between the two would be taken for known, and be overwritten by the next of the server's own node."""
    lock, held = threading.Lock(), []

    class Watched(Server):
        @property
        def version(self):
            held.append(lock.locked())
            return super().version

    class Model(torch.Tensor):
        def clone(self):
            held.append(lock.locked())
            return super().clone()

    node = SimpleNamespace(
        rank=0,
        size=2,
        trained=1,
        params=torch.ones(1),
        keep=lambda name, tensor: tensor,
        answer=lambda topic, handler: None,
        undisturbed=lambda: lock,
        peers=lambda: (1,),
        count=lambda name, amount=1: None,
    )
    model = torch.zeros(1).as_subclass(Model)
    server = Watched(node, model, Raw(), pushes_per_update=1, rate=1.0, damping=0.0, most_ahead=None, trains=True)
    assert outcome(server.read()) == (torch.zeros(1), 0)
    fresh, version = outcome(server.push(server.coded(torch.ones(1), Raw(), version=0, number=1)))
    assert (float(fresh), version) == (1.0, 1)
    assert len(held) >= 5
    assert all(held)
    assert not lock.locked()
