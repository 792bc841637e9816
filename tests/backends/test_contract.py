"""One contract, every backend."""

from functools import partial

import pytest

import flockstep as fs
from flockstep.testing.backends import BACKEND_LAWS

LAWS = {type(law).__name__: law for law in BACKEND_LAWS}
BACKENDS = {
    "simulator": fs.simulate,
    "slow network": partial(
        fs.simulate,
        network=fs.Network(bandwidth="1 Mbit/s", latency="20 ms"),
        compute=fs.Compute(step="10 ms", spread=0.5),
    ),
    "threads": partial(fs.launch, on="threads"),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.cases(check=30)
def test_in_this_process(backend, law):
    LAWS[law].check(BACKENDS[backend])


@pytest.mark.cases(test=4)
@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_processes(law):
    LAWS[law].check(fs.launch)
