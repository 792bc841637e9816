"""A strategy that waits for nobody says so where its nodes hardly meet; it said nothing before."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch

import flockstep as fs
from flockstep.parts.slow_network import SELDOM, SlowNetworkWarning
from flockstep.workloads.convex import Quadratics

WORDS = "may end up worse than one node by itself"


def _said(caplog: pytest.LogCaptureFixture, strategy: fs.Strategy, bandwidth: str, *, nodes: int = 2) -> list[str]:
    workload = Quadratics(dim=1000, noise=0.1)
    with caplog.at_level(logging.WARNING, "flockstep"):
        fs.simulate(
            strategy,
            workload,
            nodes=nodes,
            steps=300,
            optimizer=partial(torch.optim.SGD, lr=0.01),
            network=fs.Network(bandwidth=bandwidth, latency="1 ms"),
            compute=fs.Compute(step="10 ms"),
        )
    return [record.getMessage() for record in caplog.records if WORDS in record.getMessage()]


NOBODY_WAITS = (fs.HPSGD(), fs.Swarm(), fs.ADPSGD())


@pytest.mark.parametrize("strategy", NOBODY_WAITS, ids=lambda strategy: type(strategy).__name__)
@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.cases(check=2)
def test_on_a_slow_link_it_is_said_once_per_node(
    caplog: pytest.LogCaptureFixture, strategy: fs.Strategy, nodes: int
) -> None:
    said = _said(caplog, strategy, "100 kbit/s", nodes=nodes)
    assert 1 <= len(said) <= nodes
    assert len(set(said)) == len(said)
    assert all("LocalSGD(period=16)" in words for words in said)


@pytest.mark.parametrize("strategy", NOBODY_WAITS, ids=lambda strategy: type(strategy).__name__)
@pytest.mark.slow
def test_on_a_fast_link_nothing_is_said(caplog: pytest.LogCaptureFixture, strategy: fs.Strategy) -> None:
    assert _said(caplog, strategy, "100 Mbit/s") == []


@pytest.mark.parametrize(
    "strategy", [fs.HPSGD(period=64), fs.Swarm(period=64)], ids=lambda strategy: type(strategy).__name__
)
def test_nor_where_the_user_chose_so_long_a_phase(caplog: pytest.LogCaptureFixture, strategy: fs.Strategy) -> None:
    assert _said(caplog, strategy, "100 Mbit/s") == []


@pytest.mark.parametrize(("steps", "words"), [(SELDOM - 1, 0), (SELDOM, 1)])
def test_from_so_many_steps_on(caplog: pytest.LogCaptureFixture, steps: int, words: int) -> None:
    watch = SlowNetworkWarning("HPSGD", remedy="send less")
    with caplog.at_level(logging.WARNING, "flockstep"):
        for _ in range(3):
            watch.see(steps)
    assert len(caplog.records) == words
