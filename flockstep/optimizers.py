"""What may be known of a torch optimizer by its class: whether its step can be taken another way."""

from __future__ import annotations

import torch

_BY_COORDINATE = {
    torch.optim.ASGD,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
}


def works_by_coordinate(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step treats every coordinate for itself; one of a user's own class says ``row_wise = True``."""
    kind = type(optimizer)
    return kind in _BY_COORDINATE or bool(vars(kind).get("row_wise", False))


def is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is ``x <- x - lr * g`` and nothing else happens in it."""
    if type(optimizer) is not torch.optim.SGD or len(optimizer.param_groups) != 1:
        return False
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    group = optimizer.param_groups[0]
    return not any(hooks) and not any(group[name] for name in ("momentum", "weight_decay", "nesterov", "maximize"))
