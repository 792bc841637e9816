"""How much of what a worker pushes should DPSGD's server add, so that nothing has to be tuned for 1 to 64 workers?

The loss of the server's model against that of one node alone after as many steps of each node, for three rules: all of
it (the sum, as in the paper), 1 / sqrt(n) and 1 / n for n workers. Quadratics and logistic regression by SGD, and a
small transformer on characters of Shakespeare by AdamW in a loop of its own (``fs.join``), all at the best of four
learning rates for one node. Nodes push after every step, of 10 ms give or take 30%; messages take no time, so that a
push is about n folds old. See README.md beside this file.
"""

from __future__ import annotations

import math
import statistics
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flockstep as fs
from benchmarks.report import Progress, arguments, finish
from flockstep.node import stream
from flockstep.workloads.convex import Logistic, Quadratics
from flockstep.workloads.datasets import shakespeare

NAME = "experiments.dpsgd_workers"
HERE = Path(__file__).parent
WORKERS = (1, 2, 4, 8, 16, 64)
RULES: dict[str, Callable[[int], float]] = {
    "sum": lambda n: 1.0,
    "1/sqrt(n)": lambda n: n**-0.5,
    "1/n": lambda n: 1 / n,
}
COMPUTE = fs.Compute(step="10 ms", spread=0.3)
NO_HARM = 1.05
CONTEXT, BATCH, WIDTH = 32, 8, 32


class Transformer(nn.Module):
    """One block: attention to what came before, and a feed-forward part."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.block = nn.TransformerEncoderLayer(
            WIDTH, 2, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.norm, self.logits = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits for the character after each."""
        h = self.embed(tokens) + self.place(torch.arange(CONTEXT))
        logits: Tensor = self.logits(self.norm(self.block(h, src_mask=self.mask, is_causal=True)))
        return logits


def convex(workload: Any, rate: float, workers: int, server_lr: float, seed: int, steps: int) -> float:
    """The loss of the server's model above the least there is."""
    trace = fs.simulate(
        fs.DPSGD(server_lr=server_lr),
        workload,
        nodes=workers,
        steps=steps,
        optimizer=partial(torch.optim.SGD, lr=rate),
        record_every=steps,
        compute=COMPUTE,
        seed=seed,
    )
    return float(workload.loss(trace.models[0]))


def text(rate: float, workers: int, server_lr: float, seed: int, steps: int) -> float:
    """The loss of the server's model on text that nobody trained on."""
    letters = sorted(set(shakespeare()))
    codes = torch.from_numpy(np.searchsorted(letters, list(shakespeare()[:400_000])))
    train, held_out = codes[:380_000], codes[380_000:]

    def windows(data: Tensor, begins: Any) -> tuple[Tensor, Tensor]:
        cut = torch.stack([data[b : b + CONTEXT + 1] for b in begins])
        return cut[:, :-1], cut[:, 1:]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x).flatten(0, 1), y.flatten())

    def train_one() -> float:
        torch.manual_seed(seed)
        model = Transformer(len(letters))
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        with fs.join(model, optimizer, fs.DPSGD(server_lr=server_lr)) as node:
            rng = stream(seed, node.rank, "data")
            for _ in range(steps):
                optimizer.zero_grad()
                x, y = windows(train, rng.integers(0, len(train) - CONTEXT - 1, BATCH))
                loss(model, x, y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        if node.rank:
            return math.nan
        with torch.no_grad():
            return loss(model, *windows(held_out, range(0, len(held_out) - CONTEXT - 1, 80))).item()

    return float(fs.simulate(train_one, nodes=workers, compute=COMPUTE, seed=seed).results[0])


def problems(quick: bool) -> dict[str, tuple[Callable[[float, int, float, int], float], tuple[float, ...]]]:
    """Loss by learning rate, workers, server_lr and seed; and the learning rates that one node may choose from."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((4096, 20))
    labels = np.sign(features @ rng.standard_normal(20) + 0.5 * rng.standard_normal(4096))
    quadratics, logistic = Quadratics(dim=32, heterogeneity=0.0), Logistic(data=(features, labels), batch=8, l2=1e-2)
    steps, long = (8, 20) if quick else (40, 100)
    return {
        "transformer, AdamW": (lambda lr, n, r, s: text(lr, n, r, s, steps), (0.005, 0.01, 0.02, 0.04)),
        "logistic, SGD": (lambda lr, n, r, s: convex(logistic, lr, n, r, s, long), (0.1, 0.2, 0.4, 0.8)),
        "quadratics, SGD": (lambda lr, n, r, s: convex(quadratics, lr, n, r, s, long), (0.0125, 0.025, 0.05, 0.1)),
    }


def measured(loss: Callable[[int, float, int], float], workers: int, server_lr: float, seeds: int) -> float:
    """The mean over seeds; infinite where a run did not stay finite."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="DPSGD's analysis")
        try:
            return statistics.fmean(loss(workers, server_lr, seed) for seed in range(seeds))
        except (fs.Diverged, fs.NodeFailed):
            return math.inf


def main() -> None:
    """All problems, rules and numbers of workers."""
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument("--seeds", type=int, default=1, help="how many (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    workers = (1, 2) if options.quick else WORKERS
    chosen = problems(options.quick)
    progress, rows = Progress(len(chosen) * (1 + len(RULES) * (len(workers) - 1))), []
    worst = dict.fromkeys(RULES, 0.0)
    for name, (of_rate, rates) in chosen.items():
        progress(f"{name}, one node")
        alone, rate = min((measured(partial(of_rate, rate), 1, 1.0, options.seeds), rate) for rate in rates)
        loss = partial(of_rate, rate)
        for rule, share in RULES.items():
            row: dict[str, Any] = {"problem": name, "lr": rate, "rule": rule, "n = 1": round(alone, 4)}
            for n in workers[1:]:
                progress(f"{name}, {rule}, {n} workers")
                row[f"n = {n}"] = round(measured(loss, n, share(n), options.seeds), 4)
                worst[rule] = max(worst[rule], row[f"n = {n}"] / alone)
            rows.append(row)
            print(row, file=sys.stderr)
    finish(
        NAME,
        rows,
        figures={"worst over one node": {rule: round(ratio, 3) for rule, ratio in worst.items()}},
        met={
            f"server_lr = 1 / n ends at {worst['1/n']:.3f} of one node's loss at worst, at most {NO_HARM}": worst["1/n"]
            <= NO_HARM
        },
        folder=options.out or (None if options.quick else HERE),
        note="Losses of the server's model after as many steps of each node; inf where a run did not stay finite.",
    )


if __name__ == "__main__":
    main()
