"""Batch-norm statistics are no sum of changes: whatever a strategy does to models, a variance stays a variance."""

import pytest
import torch
from one_of_each import one_of_each
from torch import nn

import flockstep as fs

STRATEGIES = [
    *one_of_each(period=8),
    fs.HPSGD(local_steps=8, outer_lr=0.5),
    fs.StreamingDiLoCo(period=8, fragments=2, delay=3),
    fs.DPSGD(local_steps=8, ahead=8),
    fs.DPSGD(local_steps=8, fold=4, codec=fs.Cast()),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_variance_stays_between_what_it_was_and_what_is_seen(strategy):
    """It starts at 1, and inputs have one of 0.01: what is added late, twice or with momentum goes below that."""
    scale = 0.1

    def train():
        torch.manual_seed(fs.rank())
        model, seen = nn.BatchNorm1d(3, momentum=0.5), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with fs.join(model, optimizer, strategy):
            for _ in range(59):
                optimizer.zero_grad()
                model(torch.randn(64, 3) * scale).sum().backward()
                optimizer.step()
                seen.append(model.running_var.clone())
        return torch.stack([*seen, model.running_var])

    trace = fs.simulate(
        train,
        nodes=4,
        network=fs.Network(bandwidth="1 Gbit/s", latency="30 ms"),
        compute=fs.Compute(step="20 ms", spread=0.3),
    )
    for rank, variance in trace.results.items():
        assert float(variance.min()) > 0.3 * scale**2, rank
        assert float(variance.max()) < 1.0 + scale, rank
        assert float(variance[-1].max()) < 0.1, rank
