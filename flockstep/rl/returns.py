"""Returns with the value of what lies beyond a roll-out.

R_t = r_t + gamma * | 0                                                     the episode ended there
                    | V(last observation of it)                             it was cut short, by a time limit
                    | lambda R_{t+1} + (1 - lambda) V(s_{t+1})              it goes on;  R_n = V(s_n)

R - V is the generalized advantage estimate of Schulman et al. 2016; with lambda = 1, R is the n-step return.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def n_step_returns(
    rewards: NDArray[Any],
    terminated: NDArray[Any],
    truncated: NDArray[Any],
    final_values: NDArray[Any],
    bootstrap: NDArray[Any],
    gamma: float,
    *,
    values: NDArray[Any] | None = None,
    gae_lambda: float = 1.0,
) -> NDArray[Any]:
    """Returns of a roll-out: (steps, environments) for all but ``bootstrap``, (environments,).

    ``values`` are those of the observations that were acted on; with ``gae_lambda=1`` nobody needs them.
    ``final_values`` are the values of observations that episodes ended with; only those of truncated ones count.
    An episode that ends and is cut at once has ended.
    """
    returns = np.empty_like(rewards)
    after = bootstrap
    for t in range(len(rewards) - 1, -1, -1):
        if values is not None and t + 1 < len(rewards):
            after = gae_lambda * after + (1 - gae_lambda) * values[t + 1]
        beyond = np.where(truncated[t], final_values[t], after)
        after = rewards[t] + gamma * np.where(terminated[t], 0.0, beyond)
        returns[t] = after
    return returns
