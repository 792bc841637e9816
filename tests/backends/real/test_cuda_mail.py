"""Vectors on a GPU go through pinned memory, on a stream of their own."""

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.memory import Staging
from flockstep.message import Message

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("length", [0, 1, 1000, 3_000_001])
def test_a_question_and_a_reply_from_a_gpu(length):
    data = (torch.arange(length, device="cuda") % 251).to(torch.uint8)
    houses = [open_endpoint(b"r" * 16, rank, 2, Limits(30), ListenOn()) for rank in range(2)]
    try:
        houses[0].box.members.learn(houses[1].box.members.everyone())
        houses[1].box.answer("echo", lambda peer, message: Message(message.data.cuda(), "Raw", (length,), torch.uint8))
        for _ in range(3):
            reply = houses[0].box.ask(1, "echo", Message(data, "Raw", (length,), torch.uint8))
            assert torch.equal(reply.data, data.cpu())
    finally:
        for house in houses:
            house.close()


def test_what_was_written_last_is_what_travels():
    """The copy waits for the kernels that make the data, without stopping the device."""
    staging = Staging()
    for k in range(20):
        data = torch.zeros(10_000_000, dtype=torch.uint8, device="cuda")
        for _ in range(k + 1):
            data += 1
        assert set(np.frombuffer(staging.view(data), np.uint8)[:: 10**6].tolist()) == {k + 1}


def test_pinned_memory_is_used_again_only_when_free():
    staging = Staging()
    first = staging.view(torch.ones(100_000, dtype=torch.uint8, device="cuda"))
    second = staging.view(torch.full((100_000,), 2, dtype=torch.uint8, device="cuda"))
    assert (first[0], second[0]) == (1, 2)
    del first
    third = staging.view(torch.full((100_000,), 3, dtype=torch.uint8, device="cuda"))
    assert (second[0], third[0]) == (2, 3)
    assert len(staging._pinned._kept) == 2


class Pull:
    one_sided = True

    async def run(self, node):
        raw = fs.codecs.Raw()
        node.answer("model", lambda peer, message: raw.encode(node.params, node.rng))
        async for _ in node.steps():
            await node.step(await node.gradient(node.params))
            for peer in node.peers():
                theirs = raw.decode(await node.ask(peer, "model", raw.encode(torch.zeros(1), node.rng)), node.params)
                node.params.add_(theirs - node.params, alpha=0.5)


def test_a_joined_loop_on_a_gpu_asks_another():
    def train():
        torch.manual_seed(fs.rank())
        model = torch.nn.Linear(4, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x = torch.randn(64, 4, device="cuda")
        with fs.join(model, optimizer, Pull()) as node:
            for _ in range(20):
                optimizer.zero_grad()
                (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
                optimizer.step()
            return node.average_model().weight.flatten().tolist()

    trace = fs.launch(train, nodes=2, timeout=120)
    torch.testing.assert_close(torch.tensor(list(trace.results.values())), torch.ones(2, 4), atol=0.4, rtol=0)
