"""n-step returns, with the value of what lies beyond a roll-out.

R_t = r_t + gamma * | 0                                 the episode ended there
                    | V(last observation of it)         it was cut short, by a time limit
                    | R_{t+1}                           it goes on;  R_n = V(s_n)
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
) -> NDArray[Any]:
    """Returns of a roll-out: (steps, environments) for all but ``bootstrap``, (environments,).

    ``final_values`` are the values of observations that episodes ended with; only those of truncated ones count.
    An episode that ends and is cut at once has ended.
    """
    returns = np.empty_like(rewards)
    after = bootstrap
    for t in range(len(rewards) - 1, -1, -1):
        beyond = np.where(truncated[t], final_values[t], after)
        after = rewards[t] + gamma * np.where(terminated[t], 0.0, beyond)
        returns[t] = after
    return returns
