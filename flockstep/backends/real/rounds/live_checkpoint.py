"""A node's whole state between two steps, as another one takes it over: kept in memory, and asked for piece by piece.

Whoever gives it goes on training meanwhile. What is a node's own, such as what its codec has left out so far, stays.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from flockstep.errors import LostPeer
from flockstep.message import Message

ASK_STATE = "flockstep live checkpoint"
_KEPT = 3
_LARGEST_PIECE = 2**26


@dataclass(frozen=True)
class LiveCheckpoint:
    """Tensors by name, and everything else as plain values."""

    tensors: dict[str, Tensor]
    plain: dict[str, Any]
    rounds: dict[str, int]
    """Of each channel, how many rounds have gone into it."""

    @property
    def nbytes(self) -> int:
        """What travels."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class Offered:
    """What this node has for those it has let in, by the view that they came with."""

    def __init__(self) -> None:
        self._kept: dict[int, LiveCheckpoint] = {}
        self._wanted_at = 0.0

    def keep(self, epoch: int, checkpoint: LiveCheckpoint) -> None:
        """For those of one view. A few earlier ones are kept, too: a view may be agreed on later than proposed."""
        self._wanted_at = time.monotonic()
        self._kept[epoch] = checkpoint
        while len(self._kept) > _KEPT:
            self._kept.pop(min(self._kept))

    def tidy(self, patience: float) -> None:
        """Forget what nobody has asked for in a while: it is as large as all that a node trains with."""
        if self._kept and time.monotonic() - self._wanted_at > patience:
            self._kept.clear()

    def answer(self, peer: int, question: Message) -> Message:
        """The list of what there is, or a piece of it."""
        self._wanted_at = time.monotonic()
        epoch, name, begin = json.loads(question.to_bytes())
        kept = self._kept.get(epoch)
        if kept is None:
            return Message.of_bytes(b"", "not kept")
        if name is None:
            shapes = {name: [list(t.shape), str(t.dtype)] for name, t in kept.tensors.items()}
            return Message.of_bytes(json.dumps([kept.plain, kept.rounds, shapes]).encode(), "state")
        piece = _as_bytes(kept.tensors[name])[begin : begin + _LARGEST_PIECE]
        return Message(piece, "piece", tuple(piece.shape), torch.uint8)


def fetch(ask: Callable[[Message], Message], epoch: int) -> LiveCheckpoint | None:
    """What a node has kept; None if it has nothing for this view. LostPeer where it is lost meanwhile."""
    listed = ask(_question(epoch, None, 0))
    if listed.codec != "state":
        return None
    plain, rounds, shapes = json.loads(listed.to_bytes())
    tensors = {name: torch.empty(shape, dtype=_dtype(text)) for name, (shape, text) in shapes.items()}
    for name, tensor in tensors.items():
        flat = _as_bytes(tensor)
        for begin in range(0, flat.numel(), _LARGEST_PIECE):
            piece = ask(_question(epoch, name, begin))
            if piece.codec != "piece" or piece.data.numel() != len(flat[begin : begin + _LARGEST_PIECE]):
                raise LostPeer("whoever has let this node in has nothing for it any more")
            flat[begin : begin + _LARGEST_PIECE] = piece.data
    return LiveCheckpoint(tensors, plain, rounds)


def pack(tensors: dict[str, Tensor], plain: dict[str, Any]) -> Message:
    """A state as one message."""
    data = save(tensors, {"flockstep": json.dumps(plain)})
    return Message(torch.frombuffer(bytearray(data), dtype=torch.uint8), "state", (len(data),), torch.uint8)


def unpack(message: Message) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What ``pack`` packed; LostPeer where it is not that."""
    data = message.to_bytes()
    try:
        # safetensors reads tensors from memory, and what goes with them from its header only.
        length = int.from_bytes(data[:8], "little")
        plain = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["flockstep"])
        return load(data), plain
    except (ValueError, KeyError, SafetensorError) as error:
        raise LostPeer(f"a state that makes no sense: {error}") from None


def _question(epoch: int, name: str | None, begin: int) -> Message:
    return Message.of_bytes(json.dumps([epoch, name, begin]).encode(), "question")


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _dtype(text: str) -> torch.dtype:
    found = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise LostPeer(f"what came as a dtype is none: {text[:40]!r}")
    return found
