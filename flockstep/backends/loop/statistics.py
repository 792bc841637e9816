"""Float buffers: what of them belongs to the model that is averaged, and what is nobody's business.

Statistics that move, such as batch norm's, are averaged. Constants (attention masks, tables of angles) must come
through untouched, whatever they hold; nobody says which is which, so it is seen: a buffer that was never changed here
is never written to. In the vector lies how far a buffer has moved since the door, where all nodes had the same: zero
for every constant, so that none costs a codec a bit of precision, and minus infinity is never subtracted from itself.

Buffers that ``state_dict`` leaves out (``persistent=False``: caches, derived tables) and buffers that hold anything not
finite at the door are the node's own. A value that a bad batch made not finite goes back to what it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flockstep.backends.loop.plain import write
from flockstep.vector import is_finite


@dataclass(eq=False)
class Buffer:
    """A buffer by its place: modules may put another tensor there at any time."""

    name: str
    module: nn.Module
    key: str
    shape: torch.Size
    dtype: torch.dtype

    @property
    def now(self) -> Tensor:
        """The tensor that is there now; RuntimeError where it is another kind of thing."""
        tensor = self.module._buffers.get(self.key)
        if tensor is None or tensor.shape != self.shape or tensor.dtype != self.dtype:
            found = "gone" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
            raise RuntimeError(
                f"buffer {self.name} was {tuple(self.shape)} of {self.dtype} when the loop joined, and is {found} now\n"
                "  leave the `with`, and join again"
            )
        return tensor


class _Averaged(Buffer):
    """One that is part of the vector."""

    base: Tensor
    """What it was at the door, on all nodes."""
    slot: Tensor
    """Its place in the vector."""
    seen: Tensor | None = None
    """What the slot held when the model was last looked at, if the buffer has ever moved here."""
    mark: tuple[int, int] = (0, 0)

    def has_moved(self, now: Tensor, *, closely: bool) -> bool:
        """Whether somebody here has changed it, as far as can be told without waiting for a GPU at every step."""
        # Batch norm's kernels do not count versions up; others hardly ever fail to.
        if isinstance(self.module, _NormBase) or self.mark != _mark(now):
            return True
        return closely and not torch.equal(now, self.base)

    def change(self, now: Tensor) -> Tensor:
        """How far it has moved since the door."""
        return (_real(now) - _real(self.base)).to(self.slot.dtype)

    def take(self, into: Tensor, slot: Tensor) -> None:
        """Write what a slot says into a buffer like this one: only where it says something new, so that a number
        which nobody has changed stays what it was to the bit, or where the buffer holds no number."""
        # Past the count of versions: nobody has moved it but us.
        real = _real(into.data)
        new = (_real(self.base) + slot).to(real.dtype)
        real.copy_(torch.where((slot != self.seen) | ~real.isfinite(), new, real))


class Statistics:
    """The float buffers of a model, and the part of its vector that stands for them."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers: list[_Averaged] = []
        self.others: list[Buffer] = []
        """Buffers that are not averaged."""
        self.constants: list[Buffer] = []
        """Those of them that cannot be, and must not move: they began with values that are not finite."""
        self.mended = 0
        """How often one was found not finite, and put back."""
        self._pulls = 0
        seen: set[int] = set()
        for prefix, module in model.named_modules():
            for key, tensor in module._buffers.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    self._sort(f"{prefix}.{key}" if prefix else key, module, key, tensor)

    def _sort(self, name: str, module: nn.Module, key: str, tensor: Tensor) -> None:
        place = (name, module, key, tensor.shape, tensor.dtype)
        floats = tensor.is_floating_point() or tensor.is_complex()
        if floats and key not in module._non_persistent_buffers_set:
            if is_finite(_real(tensor)):
                self.buffers.append(_Averaged(*place))
                return
            self.constants.append(Buffer(*place))
        self.others.append(Buffer(*place))

    @property
    def bases(self) -> list[Tensor]:
        """What buffers were at the door."""
        return [buffer.base for buffer in self.buffers]

    def lie_in(self, slots: list[Tensor]) -> None:
        """These parts of the vector, which are zero, stand for the buffers as they are now."""
        for buffer, slot in zip(self.buffers, slots, strict=True):
            buffer.base, buffer.slot, buffer.mark = buffer.now.detach().clone(), slot, _mark(buffer.now)

    def settle(self) -> None:
        """Other bases and slots were taken over: buffers become what these say."""
        for buffer in self.buffers:
            now, base = buffer.now, _real(buffer.base)
            moved = (base + buffer.slot).to(base.dtype)
            write(_real(now.data), torch.where(buffer.slot == 0, base, moved))
            buffer.mark = _mark(now)
            buffer.seen = buffer.slot.clone() if bool(buffer.slot.any()) else None

    def pull(self, *, overwritten: bool) -> None:
        """Bring slots up to date with buffers; ``overwritten``: somebody has written to the vector since."""
        # Each time in a hundred steps would be too often for a large constant, and once too seldom: at 1, 2, 4, 8 ...
        self._pulls += 1
        closely = self._pulls & (self._pulls - 1) == 0
        for buffer in self.buffers:
            now = buffer.now
            if buffer.seen is not None or buffer.has_moved(now, closely=closely):
                buffer.seen = self._finite(buffer, now, buffer.change(now))
                buffer.slot.copy_(buffer.seen)
            elif overwritten:
                buffer.slot.zero_()

    def _finite(self, buffer: _Averaged, now: Tensor, change: Tensor) -> Tensor:
        """The change, where it is finite; elsewhere what it was before, and the buffer is put back."""
        if now.device.type == "cpu" and is_finite(change):
            return change
        fine = change.isfinite()
        change = torch.where(fine, change, buffer.slot)
        if now.device.type == "cpu":
            self.mended += 1
            real = _real(now.data)
            real.copy_(torch.where(fine, real, (_real(buffer.base) + change).to(real.dtype)))
        return change

    def push(self) -> None:
        """Bring buffers that move up to date with their slots."""
        for buffer in self.buffers:
            if buffer.seen is not None:
                buffer.take(buffer.now, buffer.slot)
                buffer.seen = buffer.slot.clone()

    def load(self, named: dict[str, Tensor], slots: list[Tensor]) -> None:
        """Write other slots into the buffers of a copy of the model."""
        for buffer, slot in zip(self.buffers, slots, strict=True):
            if buffer.seen is not None:
                buffer.take(named[buffer.name], slot)


def _mark(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
