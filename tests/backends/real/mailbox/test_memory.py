"""A buffer is used again when nothing of what came in it is left, and not before."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flockstep.backends.real.mailbox.memory import Buffers, Staging

SHORT = 64 * 1024
LONG = SHORT + 1000


def place(buffer):
    return torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()


def tensor(buffer):
    return torch.frombuffer(buffer, dtype=torch.uint8)


HOLDERS = {
    "the buffer itself": lambda buffer: buffer,
    "a tensor": tensor,
    "a slice of a tensor": lambda buffer: tensor(buffer)[7:9],
    "a reshaped tensor": lambda buffer: tensor(buffer)[:16].view(torch.float32).view(2, 2),
    "a detached tensor": lambda buffer: tensor(buffer).detach(),
    "a tensor's storage": lambda buffer: tensor(buffer).untyped_storage(),
    "a numpy view": lambda buffer: tensor(buffer).numpy(),
    "a slice of a numpy view": lambda buffer: tensor(buffer).numpy()[5:6],
    "a memoryview": memoryview,
    "a slice of a memoryview": lambda buffer: memoryview(buffer)[3:],
    "a memoryview of a numpy view": lambda buffer: memoryview(tensor(buffer).numpy())[:1],
    "a parameter": lambda buffer: torch.nn.Parameter(tensor(buffer), requires_grad=False),
    "a tensor in a list in a dict": lambda buffer: {"it": [tensor(buffer)]},
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_whoever_holds_anything_keeps_it(holder):
    buffers = Buffers()
    buffer = buffers.take(LONG)
    where = place(buffer)
    held = HOLDERS[holder](buffer)
    del buffer
    gc.collect()
    other = buffers.take(LONG)
    assert place(other) != where
    del held
    gc.collect()
    assert place(buffers.take(LONG)) == where
    del other


@pytest.mark.parametrize("count", [1, 2, 5])
def test_nobody_gets_what_is_held(count):
    buffers = Buffers()
    held = [tensor(buffers.take(LONG)) for _ in range(count)]
    assert len({each.data_ptr() for each in held}) == count


@pytest.mark.parametrize("count", [9, 20])
def test_more_than_are_kept_are_still_nobody_elses(count):
    buffers = Buffers()
    held = [tensor(buffers.take(LONG)).fill_(i) for i in range(count)]
    assert [set(each.tolist()) for each in held] == [{i} for i in range(count)]


def test_once_free_it_is_used_again_and_again():
    buffers = Buffers()
    assert len({place(buffers.take(LONG)) for _ in range(50)}) == 1


def test_every_length_is_exactly_what_was_asked_for():
    buffers = Buffers()
    for count in (0, 1, SHORT - 1, SHORT, LONG, LONG + 1, LONG, SHORT, 2 * LONG + 1):
        buffer = buffers.take(count)
        assert len(buffer) == len(memoryview(buffer)) == memoryview(buffer).nbytes == count
        assert not memoryview(buffer).readonly


def test_another_length_is_another_buffer():
    buffers = Buffers()
    where = place(buffers.take(LONG))
    longer = buffers.take(LONG + 1)
    assert place(longer) != where
    assert place(buffers.take(LONG)) == where


@pytest.mark.parametrize("count", [1, 1000, SHORT - 1])
def test_short_ones_are_never_shared(count):
    buffers = Buffers()
    one, two = buffers.take(count), buffers.take(count)
    assert one is not two
    assert place(one) != place(two)
    assert not buffers._kept


def test_threads_that_take_at_once_never_get_the_same():
    buffers, threads, rounds = Buffers(), 4, 300
    together = threading.Barrier(threads)

    def work(mark):
        for i in range(rounds):
            together.wait(60)
            mine = tensor(buffers.take(LONG))
            mine.fill_(mark)
            half = mine[: LONG // 2] if i % 2 else mine.numpy()
            del mine
            # Whoever else had it would leave a mark of its own.
            assert (half == mark).all()

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, mark) for mark in range(1, threads + 1)]:
            done.result(60)


def test_held_buffers_do_not_pile_up():
    buffers = Buffers()
    for _ in range(30):
        held = [buffers.take(LONG) for _ in range(3)]
    assert len(buffers._kept) <= 8
    del held


@pytest.mark.parametrize("count", [0, 1, 7, LONG])
def test_what_is_in_memory_is_sent_from_where_it_lies(count):
    data = torch.arange(count, dtype=torch.int64).to(torch.uint8)
    view = Staging().view(data)
    assert bytes(view) == data.numpy().tobytes()
    assert view.nbytes == count
    if count:
        data[0] = 99
        assert view[0] == 99


def test_what_is_scattered_is_gathered():
    data = torch.arange(20, dtype=torch.uint8)[::2]
    assert list(Staging().view(data)) == list(range(0, 20, 2))
