"""What experiments with logistic regression share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def minimiser(signed: Tensor, l2: float) -> Tensor:
    """Where mean log(1 + exp(-rows x)) + l2/2 ||x||^2 is least, by torch's LBFGS; rows are times their labels."""
    rows = signed.double()
    x = torch.zeros(rows.shape[1], dtype=rows.dtype, requires_grad=True)
    method = torch.optim.LBFGS([x], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        method.zero_grad()
        value: Tensor = l2 / 2 * (x @ x) - logsigmoid(rows @ x).mean()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    method.step(loss)  # type: ignore[no-untyped-call]
    return x.detach()
