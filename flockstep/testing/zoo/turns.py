"""Two optimizers that take turns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flockstep.strategy import steps_with_own_gradients
from flockstep.testing.zoo.situation import Setting, Situation, batch, setting, sgd, small


class _Pair(nn.Module):
    """Two nets that are trained against each other."""

    def __init__(self) -> None:
        super().__init__()
        self.makes, self.judges = small(nn.Linear(6, 6)), nn.Linear(1, 1).double()

    def judged(self, k: int, rank: int) -> Tensor:
        x = batch(k, rank, 8, 4)
        made = self.makes(x).detach()
        apart = self.judges(made) - self.judges(x.sum(1, keepdim=True))
        out: Tensor = apart.square().mean() + self.judges(made).mean()
        return out

    def fooled(self, k: int, rank: int) -> Tensor:
        out: Tensor = -self.judges(self.makes(batch(k, rank, 8, 4))).mean()
        return out


def _pair() -> Setting:
    model = _Pair()
    return setting(model, [sgd(model.judges), torch.optim.AdamW(model.makes.parameters(), lr=0.05)])


def _first_turn(made: Setting, k: int, rank: int) -> None:
    made.optimizers[0].zero_grad()
    for parameter in made.model.makes.parameters():  # type: ignore[union-attr]
        parameter.grad = None
    made.model.judged(k, rank).backward()  # type: ignore[operator]


def _turns(made: Setting, k: int, rank: int) -> None:
    made.optimizers[0].step()
    made.optimizers[1].zero_grad()
    made.model.fooled(k, rank).backward()  # type: ignore[operator]
    made.optimizers[1].step()


def _a_pair_takes_turns(made: Setting, k: int, rank: int) -> None:
    made.optimizers[0].zero_grad()
    made.model.judged(k, rank).backward()  # type: ignore[operator]
    _turns(made, k, rank)


def _unless_own(strategy: object, nodes: int) -> str:
    sentence = "were computed after another optimizer had stepped, and this strategy works on the gradients of all"
    return "" if steps_with_own_gradients(strategy) else sentence


TURNS = (
    Situation(
        "two optimizers that take turns",
        _pair,
        loop=_a_pair_takes_turns,
        backward=_first_turn,
        update=_turns,
        refused=_unless_own,
    ),
)
