"""What is shown of the losses that a loop logs."""

import pytest
import torch

import flockstep as fs
from flockstep.backends.loop.shown_losses import SHOWN, Losses
from flockstep.trace import Row


def train():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fs.join(model, optimizer, fs.LocalSGD(period=10)) as node:
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            node.log(8.0 / 2**step)


def test_the_first_and_the_last_are_shown(monkeypatch, capsys):
    monkeypatch.setenv(SHOWN, "1")
    train()
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("node 0: step 1, loss 8, ")
    assert last.startswith("node 0: step 3, loss 2, ")


@pytest.mark.parametrize("value", [None, "0"])
def test_nothing_is_shown_where_nobody_asked(monkeypatch, capsys, value):
    monkeypatch.delenv(SHOWN, raising=False) if value is None else monkeypatch.setenv(SHOWN, value)
    train()
    assert capsys.readouterr().err == ""


def test_virtual_nodes_show_nothing(monkeypatch, capsys):
    monkeypatch.setenv(SHOWN, "1")
    fs.simulate(train, nodes=2)
    assert capsys.readouterr().err == ""


def test_lines_come_more_rarely_as_the_run_goes_on(capsys):
    losses = Losses()
    for second in range(24 * 3600):
        losses.row(Row(float(second), second, 1.0, 0.0, 0.0))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines[:3]] == ["node 0: step 0", "node 0: step 2", "node 0: step 4"]
    assert 24 * 60 <= len(lines) <= 24 * 60 + 50
