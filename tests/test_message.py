import pytest
import torch

from flockstep.message import HEADER_BYTES, Message, ring_bytes


def message(count=5, codec="raw", shape=(5,), dtype=torch.float32):
    return Message(torch.arange(count, dtype=torch.uint8), codec, shape, dtype)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (1, 2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_header_says_how_to_read_what_follows(shape, dtype):
    header = message(shape=shape, dtype=dtype, codec="modular 8").header()
    assert len(header) == HEADER_BYTES
    assert Message.read_header(header) == ("modular 8", shape, dtype, 5)


def test_bytes_are_counted_with_the_header():
    assert message().nbytes == HEADER_BYTES + 5


def test_a_copy_has_memory_of_its_own():
    original = message()
    copy = original.copy()
    original.data.fill_(9)
    assert copy.data.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (b"\xff" * HEADER_BYTES, "codec must be 1 to 16 printable"),
        (b"raw" + b"\0" * 13 + b"\x63" + b"\0" * 47, "no dtype 99"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(damage, sentence):
    with pytest.raises(ValueError, match=sentence):
        Message.read_header(damage)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Message(torch.zeros(3), "raw", (3,), torch.float32), "must be flat uint8"),
        (lambda: message(codec=""), "1 to 16 ASCII characters"),
        (lambda: message(codec="a name that is too long"), "1 to 16 ASCII characters"),
        (lambda: message(shape=(1, 1, 1, 1, 1)), "at most 4 dimensions"),
        (lambda: message(dtype=torch.complex64), "Message.dtype must be one of"),
    ],
)
def test_bad_messages_are_refused(make, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        make()


@pytest.mark.parametrize(("size", "expected"), [(1, 0), (2, 1000), (4, 1500), (3, 1333)])
def test_a_ring_sends_two_times_all_but_one_chunk(size, expected):
    assert ring_bytes(1000, size) == expected
