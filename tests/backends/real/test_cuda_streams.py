"""Collectives on a GPU run beside training's kernels: each waits only for what it needs."""

import threading

import pytest
import torch

import flockstep as fs
from flockstep.backends.real.collective.cuda_streams import StreamHandoff
from flockstep.backends.real.mailbox.memory import Buffers

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
LONG = 200_000_000
"""Clock ticks of a GPU that does nothing meanwhile: about a tenth of a second."""


def test_in_this_machines_memory_there_is_nothing_to_wait_for():
    streams = {}
    moment = StreamHandoff([torch.zeros(3)])
    with moment.aside(streams):
        pass
    assert not streams
    assert moment.home(torch.ones(2)).tolist() == [1, 1]


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@on_gpu
def test_what_was_asked_for_before_is_waited_for():
    v = torch.zeros(1000, device="cuda")
    torch.cuda._sleep(LONG)
    v += 1
    moment, streams, seen = StreamHandoff([v]), {}, []

    def work():
        with moment.aside(streams):
            doubled = 2 * v
        # Done, not only asked for: it can be read without waiting for anything.
        seen.append(doubled.cpu())

    in_a_thread(work).join()
    assert seen[0].tolist() == [2.0] * 1000


@on_gpu
def test_training_goes_on_while_the_work_is_done():
    v = torch.zeros(1000, device="cuda")
    moment, streams, begun, done = StreamHandoff([v]), {}, threading.Event(), torch.cuda.Event()

    def work():
        with moment.aside(streams):
            torch.cuda._sleep(20 * LONG)
            done.record()
            begun.set()

    thread = in_a_thread(work)
    begun.wait()
    torch.ones(1000, device="cuda").add_(1)
    torch.cuda.current_stream().synchronize()
    assert not done.query(), "training's kernels have waited for the work aside"
    thread.join()
    assert done.query()


@on_gpu
@pytest.mark.slow
@pytest.mark.parametrize("strategy", [fs.HPSGD(period=2), fs.CoCoD(period=3), fs.DataParallel()], ids=repr)
def test_processes_that_share_a_gpu_agree_with_the_simulator(strategy):
    def train(device):
        torch.manual_seed(0)
        model = torch.nn.Linear(20, 3).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(1 + fs.rank())
        with fs.join(model, optimizer, strategy):
            for _ in range(11):
                optimizer.zero_grad()
                model(torch.randn(8, 20, generator=generator).to(device)).square().mean().backward()
                optimizer.step()
        return torch.cat([p.detach().flatten().cpu() for p in model.parameters()])

    real = fs.launch(lambda: train("cuda"), nodes=2, timeout=120).results
    virtual = fs.simulate(lambda: train("cpu"), nodes=2).results
    for rank in range(2):
        torch.testing.assert_close(real[rank], virtual[rank], rtol=1e-5, atol=1e-6)


def test_a_copys_memory_is_used_again_when_nobody_holds_it():
    copies, v = Buffers(), torch.arange(50_000, dtype=torch.float64)
    first, second = copies.copy(v), copies.copy(v + 1)
    assert first.data_ptr() != second.data_ptr()
    place = first.data_ptr()
    view = first[10:]
    del first
    assert copies.copy(v).data_ptr() != place, "a view still holds it"
    del view
    third = copies.copy(2 * v)
    assert third.data_ptr() == place
    assert torch.equal(third, 2 * v)
    assert torch.equal(second, v + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 7), (101, 499)])
def test_a_copy_is_a_copy(shape, dtype):
    v = torch.randn(shape).to(dtype).requires_grad_()
    copy = Buffers().copy(v)
    assert torch.equal(copy, v)
    assert copy.dtype == dtype
    assert not copy.requires_grad
