"""What is not in the vector must not train: a layer unfrozen later, a parameter added to the optimizer.

It would be trained on every node for itself and never averaged, and nobody would know. What moves by the optimizer is
seen before the step that would move it; what moves by other means (a teacher that follows its student, inside the
model) at the next step, or where torch keeps no count of it, within the next 64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.plain import now_and_then

_JOIN_AGAIN = "\n  leave the `with` and join again, so that it becomes part of what is averaged"
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Bystanders:
    """Looks after the parameters outside the vector, and the buffers that cannot be averaged."""

    def __init__(self, model: nn.Module, flat: FlatModel, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._model, self._flat, self._optimizers = model, flat, optimizers
        self._inside = {id(p) for p in model.parameters() if flat.holds(p)}
        self._looks = 0
        self.remember()

    def remember(self) -> None:
        """From here on, nothing of it may move."""
        self._marks = {name: (tensor._version, tensor.data_ptr()) for name, tensor in self._watched().items()}
        self._sums = {name: _fingerprint(tensor) for name, tensor in self._watched().items()}

    def check(self) -> None:
        """Before a step: RuntimeError if it moves, or something has moved, what no other node will hear of."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None and id(parameter) not in self._inside:
                        self._refuse(parameter)
        self._looks += 1
        closely = now_and_then(self._looks)
        if closely:
            self._check_model()
        for name, tensor in self._watched().items():
            mark = tensor._version, tensor.data_ptr()
            if closely or mark != self._marks[name]:
                self._marks[name] = mark
                if _fingerprint(tensor) != self._sums[name]:
                    self._refuse_moved(name)

    def _check_model(self) -> None:
        there = {id(parameter) for parameter in self._model.parameters()}
        if not self._inside <= there:
            name = next(name for name, parameter in self._flat.parameters if id(parameter) not in there)
            raise RuntimeError(f"parameter {name} is no longer part of the model" + _JOIN_AGAIN)

    def _watched(self) -> dict[str, Tensor]:
        constants = {buffer.name: buffer.now for buffer in self._flat.statistics.constants}
        return {**self._flat.frozen, **constants}

    def _refuse(self, parameter: Tensor) -> None:
        name = next((name for name, other in self._model.named_parameters() if other is parameter), None)
        if name in self._flat.frozen:
            raise RuntimeError(
                f"parameter {name} did not train when the loop joined, and has a gradient now" + _JOIN_AGAIN
            )
        told = f"parameter {name}" if name else f"a parameter of shape {tuple(parameter.shape)}"
        raise RuntimeError(f"{told} has come to the optimizer since the loop joined" + _JOIN_AGAIN)

    def _refuse_moved(self, name: str) -> None:
        if name in self._flat.frozen:
            raise RuntimeError(
                f"parameter {name} does not train (requires_grad=False) and has changed since the loop joined: "
                "nodes would come apart in it\n  keep what follows the model, a teacher or an EMA, outside of it"
            )
        raise RuntimeError(
            f"buffer {name} held values that are not finite when the loop joined, and has changed since: "
            "it is a constant to us, and not averaged\n  let it begin with finite numbers"
        )


def _fingerprint(tensor: Tensor) -> int:
    """The sum of a tensor's bits, taken as whole numbers."""
    if not tensor.numel():
        return 0
    bits = tensor.detach().contiguous()
    bits = torch.view_as_real(bits) if bits.is_complex() else bits
    return int(bits.reshape(-1).view(_WORDS[bits.element_size()]).sum(dtype=torch.int64))
