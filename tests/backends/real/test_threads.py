"""What threads meet in, where the order of events matters."""

import pytest

from flockstep.backends.real.collective.threads import Hub
from flockstep.errors import LostPeer, NodeFailed


def test_one_who_fails_after_it_came_does_not_disturb_the_last_to_come():
    hub = Hub(3, timeout=5)
    everything = lambda brought: [sum(brought)] * 3  # noqa: E731
    first, second = (hub.join(rank, "mean", "model", 0, rank, everything) for rank in range(2))
    hub.fail(0, NodeFailed("node 0 has failed", rank=0))
    last = hub.join(2, "mean", "model", 0, 2, everything)
    assert last.result(5) == 3
    with pytest.raises(NodeFailed):
        first.result(5)
    with pytest.raises(LostPeer, match="when it lost node 0"):
        second.result(5)
