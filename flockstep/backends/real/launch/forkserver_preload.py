"""Imported once by the server that new nodes are forked from: what a node would otherwise spend seconds importing.

The first optimizer makes torch import its compiler; a vector of one number starts no threads that a fork would lose.
"""

import gc

import torch

import flockstep
import flockstep.backends.real.launch.spawn

for _name in flockstep.__all__:
    getattr(flockstep, _name)

_number = torch.zeros(1)
_number.grad = torch.zeros(1)
torch.optim.SGD([_number], lr=0.1).step()

# What is here stays: a node that looked for garbage in it would take a tenth of a second each time, and a copy of the
# server's memory.
gc.collect()
gc.freeze()
