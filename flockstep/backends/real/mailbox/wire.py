"""The fixed header before every message, and what is accepted in it. Raw bytes, never pickle.

    magic  version  kind  run  sender  incarnation  topic     104 bytes, little-endian
    codec  dtype  shape  length                                64 bytes, the message's own header
    data                                                       ``length`` bytes
    checksum                                                   8 bytes, XXH3-64 of all before

Whatever is not exactly this is refused with a reason, before any memory is asked for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import torch

from flockstep.message import HEADER_BYTES, Message

VERSION = 1
MAGIC = b"FLOK"
RUN_BYTES, TOPIC_BYTES, CHECKSUM_BYTES = 16, 64, 8
MOST_RANKS = 2**20
LONGEST = 2**36
_HEADER = struct.Struct(f"<4sHBx{RUN_BYTES}sI4xQ{TOPIC_BYTES}s")
FRAME_BYTES = _HEADER.size + HEADER_BYTES


class Kind(IntEnum):
    """What a frame is."""

    ASK = 1
    SEND = 2
    REPLY = 3
    KNOCK = 4
    WORD = 5
    STREAM = 6


_KINDS = frozenset(int(kind) for kind in Kind)


class Refused(Exception):
    """A message that is not accepted, and why; ``status`` is HTTP's, ``peers`` lines that prove it."""

    def __init__(self, reason: str, status: int = 400, *, peers: str = "") -> None:
        super().__init__(reason)
        self.reason, self.status, self.peers = reason, status, peers


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Everything about a message but its bytes."""

    kind: Kind
    run: bytes
    sender: int
    incarnation: int
    topic: str
    codec: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    length: int

    @classmethod
    def of(cls, kind: Kind, run: bytes, sender: int, incarnation: int, topic: str, message: Message) -> Frame:
        """The frame of a message."""
        return cls(
            kind=kind,
            run=run,
            sender=sender,
            incarnation=incarnation,
            topic=topic,
            codec=message.codec,
            shape=message.shape,
            dtype=message.dtype,
            length=message.data.numel(),
        )

    @property
    def body_bytes(self) -> int:
        """How long the whole body is: this frame, the data, the checksum."""
        return FRAME_BYTES + self.length + CHECKSUM_BYTES

    def pack(self, message: Message) -> bytes:
        """The frame as bytes."""
        topic = topic_bytes(self.topic)
        first = _HEADER.pack(MAGIC, VERSION, self.kind, self.run, self.sender, self.incarnation, topic)
        return first + message.header()

    @classmethod
    def unpack(cls, data: bytes) -> Frame:
        """A frame from bytes; Refused where it is not one."""
        if len(data) != FRAME_BYTES:
            raise Refused(f"a frame has {FRAME_BYTES} bytes, got {len(data)}")
        magic, version, kind, run, sender, incarnation, topic = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise Refused("this is no message of Flockstep's")
        if version != VERSION:
            raise Refused(f"this node speaks version {VERSION} of the protocol, the message is of version {version}")
        if kind not in _KINDS:
            raise Refused(f"there is no kind of message {kind}")
        if data[7] or any(data[28:32]):
            raise Refused("bytes that must be zero are not")
        if sender >= MOST_RANKS:
            raise Refused(f"a node's number is below {MOST_RANKS}, got {sender}")
        try:
            codec, shape, dtype, length = Message.read_header(data[_HEADER.size :])
        except ValueError as error:
            raise Refused(str(error)) from None
        if length > LONGEST:
            raise Refused(f"a message has at most {LONGEST} bytes, this one says {length}", 413)
        name = _topic(topic)
        return cls(
            kind=Kind(kind),
            run=run,
            sender=sender,
            incarnation=incarnation,
            topic=name,
            codec=codec,
            shape=shape,
            dtype=dtype,
            length=length,
        )


def topic_bytes(topic: str) -> bytes:
    """A topic as it travels; ValueError where it cannot."""
    data = topic.encode()
    if len(data) > TOPIC_BYTES or not (topic.isprintable() or not topic):
        raise ValueError(f"a topic has at most {TOPIC_BYTES} bytes, all of them printable, got {topic!r}")
    return data


def _topic(field: bytes) -> str:
    name, _, padding = field.partition(b"\0")
    if any(padding):
        raise Refused("a topic goes on after its end")
    try:
        topic = name.decode()
    except UnicodeDecodeError:
        raise Refused("a topic is not UTF-8") from None
    if topic and not topic.isprintable():
        raise Refused("a topic holds characters that cannot be printed")
    return topic
