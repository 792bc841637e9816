"""A frame is read as it was written, and whatever is not one is refused in words."""

import struct
from itertools import product

import hypothesis.strategies as st
import pytest
import torch
from hostile import DTYPES, FIELDS, FRAME, RUN, frame_bytes, little, plain_frame
from hypothesis import given, settings

from flockstep.backends.real.mailbox.wire import FRAME_BYTES, LONGEST, MOST_RANKS, Frame, Kind, Refused, topic_bytes
from flockstep.message import Message


def message(count=5, codec="raw", shape=(5,), dtype=torch.float32):
    return Message(torch.arange(count, dtype=torch.uint8), codec, shape, dtype)


def values(frame):
    return (
        frame.kind,
        frame.run,
        frame.sender,
        frame.incarnation,
        frame.topic,
        frame.codec,
        frame.shape,
        frame.dtype,
        frame.length,
    )


def with_field(name, content):
    begin, end = FIELDS[name]
    assert len(content) == end - begin
    frame = frame_bytes()
    return frame[:begin] + content + frame[end:]


def refusal(data):
    with pytest.raises(Refused) as caught:
        Frame.unpack(data)
    assert caught.value.reason == str(caught.value)
    assert plain_frame(data) is None
    return caught.value


def test_frames_have_the_length_they_say():
    assert FRAME_BYTES == FRAME == len(frame_bytes())
    assert Frame.unpack(frame_bytes(length=7)).body_bytes == 168 + 7 + 8


@pytest.mark.parametrize("kind", Kind)
def test_there_and_back(kind):
    shapes = [(), (0,), (3,), (2, 3), (1, 2, 3), (4, 3, 2, 1)]
    for count, shape, dtype in product([0, 1, 7], shapes, DTYPES):
        letter = message(count, "modular 8", shape, dtype)
        frame = Frame.of(kind, RUN, 3, 17, "weights/7", letter)
        packed = frame.pack(letter)
        assert Frame.unpack(packed) == frame
        expected = (kind, RUN, 3, 17, "weights/7", "modular 8", shape, dtype, count)
        assert plain_frame(packed) == values(frame) == expected


printable = st.characters(codec="utf-8").filter(str.isprintable)
shapes = st.lists(st.integers(0, 2**10), max_size=4).map(tuple)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(Kind),
    run=st.binary(min_size=16, max_size=16),
    sender=st.integers(0, MOST_RANKS - 1),
    incarnation=st.integers(0, 2**64 - 1),
    topic=st.text(printable, max_size=64).filter(lambda topic: len(topic.encode()) <= 64),
    codec=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=16),
    shape=shapes,
    dtype=st.sampled_from(DTYPES),
    count=st.integers(0, 100),
)
@pytest.mark.slow
def test_any_frame_there_and_back(kind, run, sender, incarnation, topic, codec, shape, dtype, count):
    letter = message(count, codec, shape, dtype)
    frame = Frame.of(kind, run, sender, incarnation, topic, letter)
    packed = frame.pack(letter)
    assert Frame.unpack(packed) == frame
    assert plain_frame(packed) == values(frame)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"kind": 4}, Kind.KNOCK),
        ({"kind": 5}, Kind.WORD),
        ({"kind": 6}, Kind.STREAM),
        ({"sender": MOST_RANKS - 1}, MOST_RANKS - 1),
        ({"incarnation": 2**64 - 1}, 2**64 - 1),
        ({"topic": b"x" * 64}, "x" * 64),
        ({"topic": b""}, ""),
        ({"topic": "ö€".encode()}, "ö€"),
        ({"codec": b"c" * 16}, "c" * 16),
        ({"dtype": 6}, torch.int64),
        ({"shape": (2**40,), "dimensions": 1}, (2**40,)),
        ({"shape": (2**10,) * 4, "dimensions": 4}, (2**10,) * 4),
        ({"length": LONGEST}, LONGEST),
    ],
)
def test_every_field_at_its_limit(fields, expected):
    frame = frame_bytes(**fields)
    assert expected in values(Frame.unpack(frame))
    assert plain_frame(frame) == values(Frame.unpack(frame))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "a frame has 168 bytes, got 0"),
        (frame_bytes()[:-1], "a frame has 168 bytes, got 167"),
        (frame_bytes() + b"\0", "a frame has 168 bytes, got 169"),
        (frame_bytes(magic=b"FLOCK"[:4]), "this is no message of Flockstep's"),
        (frame_bytes(version=0), "this node speaks version 1 of the protocol, the message is of version 0"),
        (frame_bytes(version=2), "this node speaks version 1 of the protocol, the message is of version 2"),
        (frame_bytes(version=2**16 - 1), "version 65535"),
        (frame_bytes(kind=0), "there is no kind of message 0"),
        (frame_bytes(kind=7), "there is no kind of message 7"),
        (with_field("gap", b"\1"), "bytes that must be zero are not"),
        (with_field("gap after the sender", bytes(3) + b"\1"), "bytes that must be zero are not"),
        (with_field("gap after the dimensions", bytes(5) + b"\1"), "a message's shape makes no sense"),
        (frame_bytes(sender=MOST_RANKS), "a node's number is below 1048576, got 1048576"),
        (with_field("topic", b"a\0b".ljust(64, b"\0")), "a topic goes on after its end"),
        (with_field("topic", bytes(63) + b"x"), "a topic goes on after its end"),
        (with_field("topic", b"\xff" * 64), "a topic is not UTF-8"),
        (with_field("topic", b"x" * 63 + "ö".encode()[:1]), "a topic is not UTF-8"),
        (with_field("topic", b"a\nb".ljust(64, b"\0")), "a topic holds characters that cannot be printed"),
        (with_field("codec", bytes(16)), "codec must be 1 to 16 printable ASCII characters"),
        (with_field("codec", b"\xc3\xb6".ljust(16, b"\0")), "codec must be 1 to 16 printable ASCII characters"),
        (with_field("codec", b"a\x07".ljust(16, b"\0")), "codec must be 1 to 16 printable ASCII characters"),
        (with_field("codec", b"a\0b".ljust(16, b"\0")), "codec must be 1 to 16 printable ASCII characters"),
        (frame_bytes(dtype=7), "there is no dtype 7"),
        (frame_bytes(dimensions=5), "a message's shape makes no sense"),
        (frame_bytes(dimensions=0), "a message's shape makes no sense"),
        (frame_bytes(shape=(-1,), dimensions=1), "a message's shape makes no sense"),
        (frame_bytes(shape=(2**40 + 1,), dimensions=1), "at most 1099511627776 numbers"),
        (frame_bytes(shape=(2**40, 2), dimensions=2), "at most 1099511627776 numbers"),
        (frame_bytes(length=LONGEST + 1), "at most 68719476736 bytes, this one says 68719476737"),
        (frame_bytes(length=2**64 - 1), "this one says 18446744073709551615"),
    ],
)
def test_one_beyond_is_refused_in_words(data, reason):
    assert reason in refusal(data).reason


def test_what_is_too_long_has_the_status_for_it():
    assert refusal(frame_bytes(length=LONGEST + 1)).status == 413
    assert refusal(frame_bytes(kind=9)).status == 400


@pytest.mark.parametrize("topic", ["", "weights", "x" * 64, "größe/7", "😀" * 16, "two words"])
def test_topics_that_travel(topic):
    assert topic_bytes(topic).decode() == topic
    letter = message()
    assert Frame.unpack(Frame.of(Kind.ASK, RUN, 0, 1, topic, letter).pack(letter)).topic == topic


@pytest.mark.parametrize("topic", ["x" * 65, "😀" * 17, "a\0b", "\0", "line\nline", "\x7f", "\u200b", "\ud800"])
def test_topics_that_do_not(topic):
    with pytest.raises(ValueError, match=r"at most 64 bytes, all of them printable|surrogates not allowed"):
        topic_bytes(topic)


@pytest.mark.parametrize("count", [0, 1, 63, 65, 128])
def test_a_header_of_another_length_is_refused(count):
    with pytest.raises(ValueError, match="64 bytes"):
        Message.read_header(bytes(count))


def test_the_frame_written_by_hand_is_the_one_the_library_writes():
    letter = message()
    assert Frame.of(Kind.ASK, RUN, 0, 2**62, "topic", letter).pack(letter) == frame_bytes()
    assert little(5, 4) == struct.pack("<I", 5)
