"""Optimizers, one or several, and how they are called."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from flockstep.strategy import takes_equal_steps
from flockstep.testing.zoo.situation import Setting, Situation, backward, setting, sgd, small


def _adamw(**options: Any) -> Setting:
    model = small()
    return setting(model, torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1, **options))


def _two_groups() -> Setting:
    model = small()
    first, *rest = model.parameters()
    frozen = nn.Parameter(torch.zeros(2, dtype=torch.float64), requires_grad=False)
    model.register_parameter("frozen", frozen)
    groups: list[dict[str, Any]] = [{"params": [first], "weight_decay": 0.1}, {"params": rest}, {"params": [frozen]}]
    return setting(model, torch.optim.SGD(groups, lr=0.05, momentum=0.9))


def _scheduled() -> Setting:
    model = small()
    made = setting(model, sgd(model, momentum=0.9))
    made.scheduler = torch.optim.lr_scheduler.LambdaLR(made.optimizers[0], lambda k: math.cos(k / 7))
    return made


def _adafactor() -> Setting:
    model = small()
    return setting(model, torch.optim.Adafactor(model.parameters(), lr=0.05))


def _muon_and_adamw(*, both: bool = True) -> Setting:
    model = small(nn.Linear(6, 6), nn.Tanh())
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    muon = torch.optim.Muon(matrices, lr=0.05)
    return setting(model, [muon, torch.optim.AdamW(others, lr=0.05)] if both else muon)


def _two() -> Setting:
    model = small(nn.Linear(6, 6), nn.Tanh())
    first, *others = model.parameters()
    return setting(model, [torch.optim.SGD([first], lr=0.05, momentum=0.9), torch.optim.AdamW(others, lr=0.05)])


def _backwards(made: Setting, k: int, rank: int) -> None:
    """The other way round in every other iteration."""
    for optimizer in made.optimizers[:: 1 if k % 2 else -1]:
        optimizer.step()


def _either_order(made: Setting, k: int, rank: int) -> None:
    backward(made, k, rank)
    _backwards(made, k, rank)


def _uneven_turns(made: Setting, k: int, rank: int) -> None:
    backward(made, k, rank)
    made.optimizers[0].step()
    made.optimizers[0].step()


def _with_closure(made: Setting, k: int, rank: int) -> None:
    def closure() -> Tensor:
        made.optimizers[0].zero_grad()
        loss = made.loss(made.model, k, rank)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    # Both ways of giving it.
    made.optimizers[0].step(closure) if k % 2 else made.optimizers[0].step(closure=closure)  # type: ignore[arg-type]


def _lbfgs() -> Setting:
    model = small()
    return setting(model, torch.optim.LBFGS(model.parameters()))


class _Twice(torch.optim.Optimizer):
    """Calls its closure twice a step."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> Any:
        """Look, go there, and look again."""
        closure()
        return closure()


class _Inherits(torch.optim.SGD):
    """Does something of its own, then what it has inherited: torch calls the hooks of both."""

    def step(self, closure: Any = None) -> Any:
        """SGD's, after all."""
        return super().step(closure)


def _twice() -> Setting:
    model = small()
    return setting(model, _Twice(model.parameters(), lr=0.05))


class _Remembers(torch.optim.Optimizer):
    """Keeps the last gradient as it was given, and steps along the difference to this one, too."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Forward, and a little of what has changed."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    before = self.state[p].get("before", p.grad)
                    p.sub_(p.grad + 0.5 * (p.grad - before), alpha=group["lr"])
                    self.state[p]["before"] = p.grad.detach()


def _remembers() -> Setting:
    model = small()
    return setting(model, _Remembers(model.parameters(), lr=0.05))


def _graphs(made: Setting, k: int, rank: int) -> None:
    made.optimizers[0].zero_grad()
    with warnings.catch_warnings():
        # torch warns of the memory that this takes.
        warnings.simplefilter("ignore")
        made.loss(made.model, k, rank).backward(create_graph=True)  # type: ignore[no-untyped-call]
    made.optimizers[0].step()


def _inherits() -> Setting:
    sgd(small())  # torch hooks into a class when it is first used
    model = small()
    return setting(model, _Inherits(model.parameters(), lr=0.05, momentum=0.9))


class _Shifts(torch.optim.SGD):
    """Stands for schedule-free optimizers: evaluates at other weights than it trains."""

    def train(self) -> None:
        """Go to where gradients are taken."""

    def eval(self) -> None:
        """Go to where the model is good."""


def _schedule_free() -> Setting:
    model = small()
    return setting(model, _Shifts(model.parameters(), lr=0.05))


def _unless_equal(strategy: object, nodes: int) -> str:
    return "" if takes_equal_steps(strategy) else "keeps weights of its own for evaluation (train() and eval())"


def _clipped_by_the_user(made: Setting, k: int, rank: int) -> None:
    backward(made, k, rank)
    nn.utils.clip_grad_norm_(made.model.parameters(), 0.1)


def _clips_and_steps(made: Setting, k: int, rank: int) -> None:
    _clipped_by_the_user(made, k, rank)
    made.optimizers[0].step()


def _accumulated(made: Setting, k: int, rank: int) -> None:
    for optimizer in made.optimizers:
        optimizer.zero_grad(set_to_none=False)
    for half in (0, 1):
        (made.loss(made.model, 2 * k + half, rank) / 2).backward()  # type: ignore[no-untyped-call]


def _accumulates_and_steps(made: Setting, k: int, rank: int) -> None:
    _accumulated(made, k, rank)
    made.optimizers[0].step()


OPTIMIZERS = (
    Situation("momentum", lambda: setting(m := small(), sgd(m, momentum=0.9, nesterov=True))),
    Situation("AdamW", _adamw),
    Situation("AdamW, fused", lambda: _adamw(fused=True)),
    Situation("groups of their own, one of them frozen", _two_groups),
    Situation("a schedule", _scheduled),
    Situation("Adafactor", _adafactor),
    # Muon orthogonalises in bfloat16: what differs in the last bit before differs in the second digit after.
    Situation("Muon and AdamW", _muon_and_adamw, tolerance=5e-2),
    Situation("two optimizers in either order", _two, loop=_either_order, update=_backwards),
    Situation(
        "an optimizer of some parameters",
        lambda: _muon_and_adamw(both=False),
        refused="give all optimizers: fs.join(model, [muon, adamw], strategy)",
    ),
    Situation(
        "two optimizers, one of which steps twice",
        _muon_and_adamw,
        loop=_uneven_turns,
        refused="a step of the strategy is one step of each",
    ),
    Situation("a closure", _adamw, loop=_with_closure),
    Situation("LBFGS", _lbfgs, refused="LBFGS calls its closure many times a step"),
    Situation("a closure that is called twice", _twice, loop=_with_closure, refused="more than once a step"),
    Situation("an optimizer that calls its parent's step", _inherits),
    Situation("an optimizer that keeps gradients", _remembers),
    Situation(
        "gradients with a graph",
        lambda: setting(small()),
        loop=_graphs,
        refused="has a graph of its own",
    ),
    Situation("weights of its own for evaluation", _schedule_free, refused=_unless_equal),
    Situation("gradients clipped by the user", _adamw, loop=_clips_and_steps, backward=_clipped_by_the_user),
    Situation("accumulated gradients", _adamw, loop=_accumulates_and_steps, backward=_accumulated),
)
