"""Float buffers: what of them belongs to the model that is averaged, and what is nobody's business.

Statistics that move, such as batch norm's, are averaged. Constants (attention masks, tables of angles) must come
through untouched, whatever they hold; nobody says which is which, so it is seen: a buffer that was never changed here
is never written to. In the vector lies how far a buffer has moved since the door, where all nodes had the same: zero
for every constant, so that none costs a codec a bit of precision, and minus infinity is never subtracted from itself.

Buffers that ``state_dict`` leaves out (``persistent=False``: caches, derived tables) and buffers that hold anything not
finite at the door are the node's own. A value that a bad batch made not finite goes back to what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flockstep.backends.loop.serialization import now_and_then, write
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


@dataclass(eq=False)
class _Averaged(Buffer):
    """One that is part of the vector."""

    awake: bool = False
    """Whether it has ever moved here."""
    mark: tuple[int, int] = (0, 0)

    @property
    def numbers(self) -> Tensor:
        """The tensor that is there now, as real numbers, past torch's count of versions: nobody moves it but us."""
        return _real(self.now.data)

    def has_moved(self, base: Tensor, *, closely: bool) -> bool:
        """Whether somebody here has changed it, as far as can be told without waiting for a GPU at every step."""
        # Batch norm's kernels do not count versions up; others hardly ever fail to.
        if _is_norm(self.module) or self.mark != _mark(self.now):
            return True
        return closely and not torch.equal(self.numbers.to(base.dtype), base)


class Statistics:
    """The float buffers of a model, and the part of its vector that stands for them.

    A net may have hundreds of small ones: what is done at every step is done to all of them at once.
    """

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
        # What is sure to move lies first: large constants behind it are then seldom looked at.
        self.buffers.sort(key=lambda buffer: not _is_norm(buffer.module))

    def _sort(self, name: str, module: nn.Module, key: str, tensor: Tensor) -> None:
        place = (name, module, key, tensor.shape, tensor.dtype)
        floats = tensor.is_floating_point() or tensor.is_complex()
        if floats and key not in module._non_persistent_buffers_set:
            if is_finite(_real(tensor)):
                self.buffers.append(_Averaged(*place))
                return
            self.constants.append(Buffer(*place))
        self.others.append(Buffer(*place))

    def lie_in(self, part: Tensor, cut: Callable[[Tensor], list[Tensor]]) -> None:
        """This part of the vector, which is zero, stands for the buffers as they are now; ``cut`` finds each in it."""
        self._part, self._cut = part, cut
        self._base, self._seen, self._now, self._fresh = (torch.zeros_like(part) for _ in range(4))
        self._slots, self.bases, self._room = cut(part), cut(self._base), cut(self._now)
        """Of each buffer: its place in the vector, what it was at the door, and what it was when last seen."""
        first = int(part.storage_offset())
        self._ends = [int(slot.storage_offset()) - first + slot.numel() for slot in self._slots]
        for buffer, base in zip(self.buffers, self.bases, strict=True):
            base.copy_(buffer.numbers)
            buffer.mark = _mark(buffer.now)
        self.remember()

    @property
    def slots(self) -> list[Tensor]:
        """Each buffer's place in the part that stands for them."""
        return self._slots

    def settle(self) -> None:
        """Other bases and slots were taken over: buffers become what these say."""
        for buffer, base, slot in zip(self.buffers, self.bases, self._slots, strict=True):
            write(buffer.numbers, torch.where(slot == 0, base, base + slot).to(buffer.numbers.dtype))
            buffer.mark, buffer.awake = _mark(buffer.now), bool(slot.any())
        self._seen.copy_(self._part)
        self.remember()

    def remember(self) -> None:
        """Buffers are what slots say, whatever rounding says of it."""
        for buffer, room in zip(self.buffers, self._room, strict=True):
            room.copy_(buffer.numbers)
        self._fresh.copy_(self._now)

    def look_closely(self) -> None:
        """Let the next pull miss nothing."""
        self._pulls = 0

    def pull(self, *, overwritten: bool) -> None:
        """Bring slots up to date with buffers; ``overwritten``: somebody has written to the vector since."""
        # At every step would be too often for a large constant.
        self._pulls += 1
        closely = now_and_then(self._pulls)
        for buffer, base, slot in zip(self.buffers, self.bases, self._slots, strict=True):
            buffer.awake = buffer.awake or buffer.has_moved(base, closely=closely)
            if overwritten and not buffer.awake:
                slot.zero_()
        awake, end = self._awake()
        if awake:
            fresh = self._cut(self._fresh)
            torch._foreach_copy_([fresh[i] for i in awake], [self.buffers[i].numbers for i in awake])
            part, now, new = self._part[:end], self._now[:end], self._fresh[:end]
            # A number that nobody has touched since it was written keeps its slot, to the bit: it may be on its way.
            moved = torch.where(new != now, new - self._base[:end], part)
            now.copy_(new)
            # Not even for a moment may the vector hold what is not finite: a handler may be reading it.
            part.copy_(self._finite(moved, awake))
            self._seen[:end].copy_(part)

    def _finite(self, moved: Tensor, awake: list[int]) -> Tensor:
        """What buffers say, and what they said before where that is not finite; then buffers are put back, too."""
        end = moved.numel()
        if moved.device.type != "cpu":
            # Nobody looks: the buffer itself is put back when the vector is written to.
            return torch.where(moved.isfinite(), moved, self._seen[:end])
        if is_finite(moved):
            return moved
        wrong = torch.zeros_like(self._part)
        wrong[:end] = ~moved.isfinite()
        for i, bad, before in zip(range(awake[-1] + 1), self._cut(wrong), self._cut(self._seen), strict=False):
            if bad.any():
                self.mended += 1
                numbers = self.buffers[i].numbers
                numbers.copy_(torch.where(bad.bool(), (self.bases[i] + before).to(numbers.dtype), numbers))
                self._room[i].copy_(numbers)
        return torch.where(wrong[:end].bool(), self._seen[:end], moved)

    def push(self) -> None:
        """Bring buffers that move up to date with their slots.

        Only where these say something new, so that a number which nobody has changed stays what it was to the bit, or
        where a buffer holds no number.
        """
        awake, end = self._awake()
        if awake:
            numbers = [self.buffers[i].numbers for i in awake]
            torch._foreach_copy_([self._room[i] for i in awake], numbers)
            part, now = self._part[:end], self._now[:end]
            now.copy_(torch.where((part != self._seen[:end]) | ~now.isfinite(), self._base[:end] + part, now))
            torch._foreach_copy_(numbers, [self._room[i] for i in awake])
            self._seen[:end].copy_(part)

    def load(self, named: dict[str, Tensor], slots: list[Tensor]) -> None:
        """Write other slots into the buffers of a copy of the model."""
        for buffer, base, slot, seen in zip(self.buffers, self.bases, slots, self._cut(self._seen), strict=True):
            if buffer.awake:
                numbers = _real(named[buffer.name].data)
                new = (base + slot).to(numbers.dtype)
                numbers.copy_(torch.where((slot != seen) | ~numbers.isfinite(), new, numbers))

    def _awake(self) -> tuple[list[int], int]:
        """Which buffers move, and where the last of them ends."""
        awake = [i for i, buffer in enumerate(self.buffers) if buffer.awake]
        # Slots lie in their order.
        return awake, self._ends[awake[-1]] if awake else 0


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, _NormBase)


def _mark(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
