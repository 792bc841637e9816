"""Sums of pieces: in numpy's passes, or compiled, they are those of the contract to the bit."""

import pytest
import torch

from flockstep.backends.real.rounds.carrier.adder import _LARGE, Adder
from flockstep.node import mean_of


def view(tensor):
    return tensor.view(torch.uint8).numpy().data


@pytest.mark.parametrize("nbytes", [0, _LARGE], ids=["passes", "compiled"])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.slow
def test_means_are_those_of_the_contract(nbytes, count):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for size in (1, 7, 40_000):
            given = [(torch.randn(size, dtype=torch.float64) * 10**k).to(dtype) for k in range(count)]
            out = torch.empty(size, dtype=dtype)
            Adder(dtype, nbytes).mean([view(v) for v in given], view(out))
            assert out.equal(mean_of([v.clone() for v in given], "model", 0)), (dtype, size)
