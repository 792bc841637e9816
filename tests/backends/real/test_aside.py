"""What a real node does aside, its own task does not wait for."""

import threading

import pytest

import flockstep as fs
from flockstep.workloads.convex import Quadratics


class Meeting:
    """A call made aside waits for the node's own task: it comes back only if that one went on."""

    async def run(self, node):
        went_on = threading.Event()
        pending = node.spawn(node.aside(lambda: (went_on.wait(30), threading.get_ident())))
        went_on.set()
        met, where = await pending
        assert met
        assert where != threading.get_ident()


@pytest.mark.slow
def test_the_node_goes_on_meanwhile():
    fs.launch(Meeting(), Quadratics(), nodes=2, steps=1, on="threads")
