"""One node: an ordinary loop on data of its own kind, under one contender after another."""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flockstep as fs
from benchmarks.slowlink.place import take_place
from flockstep.strategy import Strategy
from flockstep.trace import Row

ALONE = "nodes that never talk"
CONTENDERS: dict[str, Strategy] = {
    # They meet once, before they have learned anything, and can be looked at.
    ALONE: fs.Swarm(period=10**9),
    "Swarm()": fs.Swarm(),
    "Swarm(), 8 bits": fs.Swarm(codec=fs.codecs.Modular(bits=8)),
    "Swarm(period=8), 8 bits": fs.Swarm(period=8, codec=fs.codecs.Modular(bits=8)),
    "ADPSGD()": fs.ADPSGD(),
}
_FEATURES, _CLASSES, _LOOKS = 64, 10, 20


def main() -> None:
    """All contenders in turn; what came of each as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("steps", "hidden", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    rank = take_place()
    print(json.dumps({name: _run(name, rank, options) for name in CONTENDERS}))


def _run(name: str, rank: int, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(_FEATURES, options.hidden), nn.ReLU(), nn.Linear(options.hidden, options.hidden), nn.ReLU(),
        nn.Linear(options.hidden, _CLASSES),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draws, tests = torch.Generator().manual_seed(1 + rank), _batch(2000, torch.Generator().manual_seed(0))
    rows: list[dict[str, Any]] = []

    def step() -> float:
        images, labels = _batch(options.batch, draws, kind=rank)
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    with fs.join(model, optimizer, CONTENDERS[name]) as node:
        for k in range(1, options.steps + 1):
            step()
            if rank == 0 and k % (options.steps // _LOOKS) == 0:
                average = _loss(node.average_model(), tests)
                rows.append(asdict(Row(node.now, k, average, float(node.report().bytes_sent), node.spread)))
                print(f"{name}: step {k}, spread {node.spread:.4g}", file=sys.stderr, flush=True)
        counts = dict(node.report().counts)
    gc.collect()
    return {
        "own": _loss(model, tests),
        "average": rows[-1]["loss"] if rows else math.nan,
        "rows": rows,
        "counts": counts,
    }


def _batch(count: int, draws: torch.Generator, kind: int | None = None) -> tuple[Tensor, Tensor]:
    """Points around one centre per class; a node sees more of "its" half of the classes."""
    centres = torch.randn(_CLASSES, _FEATURES, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(_CLASSES, (count,), generator=draws)
    if kind is not None:
        half = _CLASSES // 2
        mine = torch.rand(count, generator=draws) < 0.8
        labels = torch.where(mine, labels % half + half * (kind % 2), labels)
    return centres[labels] + 2.5 * torch.randn(count, _FEATURES, generator=draws), labels


def _loss(model: nn.Module, tests: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(cross_entropy(model(tests[0]), tests[1]))


if __name__ == "__main__":
    main()
