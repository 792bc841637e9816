"""A worker's place in a laboratory: which node it is, and cores of its own."""

from __future__ import annotations

import os
import warnings

import torch


def take_place(*, servers: int = 0, cores: int = 1) -> int:
    """This process's rank; from now on it keeps to so many cores, and one thread of torch.

    The first ``servers`` nodes only serve, and keep to no core.
    """
    # Nobody else is in the laboratory's network.
    warnings.filterwarnings("ignore", message="the mailbox listens on")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if rank >= servers:
        there = sorted(os.sched_getaffinity(0))
        first = (rank - servers) * cores
        os.sched_setaffinity(0, {there[(first + k) % len(there)] for k in range(cores)})
    return rank
