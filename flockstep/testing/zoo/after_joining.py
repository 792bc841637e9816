"""What happens after the door."""

from __future__ import annotations

import copy

import torch
from torch import nn

from flockstep.testing.zoo.situation import Setting, Situation, backward, fit, loop, setting, small


def _unfrozen() -> Setting:
    model = small()
    model[0].requires_grad_(False)
    return setting(model, torch.optim.AdamW(model.parameters(), lr=0.05))


def _unfreezes(made: Setting, k: int, rank: int) -> None:
    if k == 2:
        made.model[0].requires_grad_(True)  # type: ignore[index]
    loop(made, k, rank)


def _freezes(made: Setting, k: int, rank: int) -> None:
    if k == 2:
        made.model[0].requires_grad_(False)  # type: ignore[index]
    backward(made, k, rank)


def _freezes_and_steps(made: Setting, k: int, rank: int) -> None:
    _freezes(made, k, rank)
    made.optimizers[0].step()


def _adds_a_layer(made: Setting, k: int, rank: int) -> None:
    if k == 2:
        layer = nn.Linear(1, 1).double()
        made.model.append(layer)  # type: ignore[operator]
        made.optimizers[0].add_param_group({"params": list(layer.parameters())})
    loop(made, k, rank)


def _student_and_teacher() -> Setting:
    """A teacher that follows its student, inside the model."""
    model = small()
    model.register_module("teacher", copy.deepcopy(model[0]).requires_grad_(False))
    return setting(model, loss=lambda made, k, rank: _without_teacher(made, k, rank))


def _without_teacher(model: nn.Module, k: int, rank: int) -> torch.Tensor:
    return fit(nn.Sequential(*list(model.children())[:3]), k, rank)


def _follows(made: Setting, k: int, rank: int) -> None:
    loop(made, k, rank)
    teacher: nn.Module = made.model.teacher  # type: ignore[assignment]
    student: nn.Module = made.model[0]  # type: ignore[index]
    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
        slow.data.lerp_(fast.data, 0.5)


def _averaged_copy() -> Setting:
    model = small()
    return setting(model, ema=torch.optim.swa_utils.AveragedModel(model))


def _updates_the_copy(made: Setting, k: int, rank: int) -> None:
    loop(made, k, rank)
    made.also["ema"].update_parameters(made.model)


def _moves(made: Setting, k: int, rank: int) -> None:
    """Gives parameters other memory, as ``model.to`` may."""
    if k == 2:
        for parameter in made.model.parameters():
            parameter.data = parameter.data.clone()
    loop(made, k, rank)


def _evaluates(made: Setting, k: int, rank: int) -> None:
    loop(made, k, rank)
    made.model.eval()
    with torch.no_grad():
        made.loss(made.model, k + 100, rank)
    made.model.train()


def _makes_another(made: Setting, k: int, rank: int) -> None:
    """A new optimizer in the middle of the loop."""
    if k == 2:
        made.optimizers[0] = torch.optim.SGD(made.model.parameters(), lr=0.01)
    loop(made, k, rank)


def _casts(made: Setting, k: int, rank: int) -> None:
    if k == 2:
        made.model.float()
    made.optimizers[0].zero_grad()
    fit(made.model, k, rank).backward()  # type: ignore[no-untyped-call]
    made.optimizers[0].step()


def _replaces(made: Setting, k: int, rank: int) -> None:
    """New parameters of the same names."""
    if k == 1:
        made.model.load_state_dict(
            {name: value.clone() for name, value in made.model.state_dict().items()}, assign=True
        )
    loop(made, k, rank)


class _Measures(nn.Module):
    """Keeps a number, which becomes several."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small()
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) + self.seen.sum()  # type: ignore[operator]
        return out


def _changes_a_buffer(made: Setting, k: int, rank: int) -> None:
    if k == 2:
        made.model.seen = torch.zeros(3, dtype=torch.float64)
    loop(made, k, rank)


def _normed() -> Setting:
    return setting(small(nn.BatchNorm1d(6)), statistics=("2.running_mean", "2.running_var"))


LATER = (
    Situation("a layer unfrozen later", _unfrozen, _unfreezes, refused="did not train when the loop joined"),
    Situation("a layer frozen later", lambda: setting(small()), _freezes_and_steps, _freezes),
    Situation(
        "a layer added later", lambda: setting(small()), _adds_a_layer, refused="has come to the optimizer since"
    ),
    Situation(
        "a teacher inside the model",
        _student_and_teacher,
        _follows,
        refused="does not train (requires_grad=False) and has changed since the loop joined",
    ),
    Situation("an optimizer made later", lambda: setting(small()), _makes_another, refused="was not joined, and steps"),
    Situation(
        "another dtype", lambda: setting(small()), _casts, refused="change models before they join: leave the `with`"
    ),
    Situation(
        "parameters put in place of others",
        lambda: setting(small()),
        _replaces,
        refused="is no longer part of the model",
    ),
    Situation("an average kept beside the model", _averaged_copy, _updates_the_copy),
    Situation("other memory", lambda: setting(small()), _moves),
    Situation("evaluation in between", _normed, _evaluates),
    Situation(
        "a buffer of another shape",
        lambda: setting(_Measures()),
        _changes_a_buffer,
        refused="leave the `with`, and join again",
    ),
)
