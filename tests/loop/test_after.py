"""What a node holds after the ``with``, as docs/saving.md tells its readers; and what docs/join.md quotes."""

import re
from pathlib import Path

import pytest
import torch
from test_zoo import NAMED
from torch import nn

import flockstep as fs
from flockstep.testing.zoo import SITUATIONS

PAGES = Path(__file__).parents[2] / "docs"


def rows(page, heading):
    """The table under a heading of a page, without its head."""
    part = (PAGES / page).read_text().split(f"# {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


SAVED = {
    name: told for names, told in rows("saving.md", "Which model to save") for name in re.findall(r"`(\w+)`", names)
}


def test_the_page_knows_every_strategy():
    assert set(SAVED) == set(NAMED)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.cases(check=4, test=8)
def test_which_model_to_save(name):
    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        torch.manual_seed(fs.rank())
        x = torch.randn(64, 4).double()
        # On its complete graph, which is its default, all have the same model after every step.
        strategy = fs.GTNSGDm(topology=fs.topologies.Ring()) if name == "GTNSGDm" else NAMED[name]
        with fs.join(model, optimizer, strategy) as node:
            # Neither a multiple of any period, nor one less.
            for _ in range(13):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
                optimizer.step()
            node.meet()
            average = node.average_model()
        return [
            torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
            for tensors in (model.parameters(), list(model[1].buffers())[:2], average.parameters())
        ]

    hardware = {
        "network": fs.Network(bandwidth="1 Gbit/s", latency="30 ms"),
        "compute": fs.Compute(step="20 ms", spread=0.3),
    }
    results = fs.simulate(train, nodes=5, **hardware).results
    weights, statistics, averages = (torch.stack([results[rank][i] for rank in range(5)]) for i in range(3))
    same = torch.allclose(weights, weights[:1], atol=1e-9)
    assert torch.allclose(averages, averages[:1], atol=1e-9)
    if "is the same on every node: save it" in SAVED[name]:
        assert same
        assert torch.allclose(statistics, statistics[:1], atol=1e-9)
    elif "weights are the same" in SAVED[name]:
        assert same
        assert not torch.allclose(statistics, statistics[:1], atol=1e-9)
    elif "the server's" in SAVED[name]:
        # All that was learned is in the server's model, and not in the mean of those who were still pushing.
        assert not torch.allclose(weights[0], averages[0], atol=1e-4)
    else:
        assert "every node has its own" in SAVED[name]
        assert not same


def test_the_page_quotes_every_refusal():
    quoted = " ".join(words for _, words in rows("join.md", "What is refused"))
    for situation in SITUATIONS:
        for strategy in NAMED.values():
            sentence = situation.refusal(strategy, 2)
            assert sentence in quoted, situation.name
