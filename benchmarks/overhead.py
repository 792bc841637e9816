"""What joining costs a loop that never talks: the joined loop against the bare one, in turns.

The period lies beyond the run, so that all that is left is ours: the gradient as one vector, the clip, the strategy's
coroutine between the optimizer's two hooks. An LSTM of 5 M parameters on one CPU thread, in processor time, because
others may use the machine, too; and where there is a GPU a Transformer of 100 M parameters in bf16 autocast, by the
clock on the wall between two synchronisations. A ratio is the median over turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flockstep as fs
from benchmarks.report import Progress, arguments, finish
from flockstep.strategy import Strategy
from flockstep.workloads.language import RecurrentModel

RESULTS = Path(__file__).parent / "results"
NEVER = 10**9
# Far above any gradient here, so that nothing is clipped; and far below, so that everything is.
STRATEGIES: dict[str, Strategy] = {
    "LocalSGD": fs.LocalSGD(period=NEVER),
    "CELGC, nothing clipped": fs.CELGC(period=NEVER, gamma=1e9),
    "CELGC, all clipped": fs.CELGC(period=NEVER, gamma=1e-6),
}
Step = Callable[[], None]


class Transformer(nn.Module):
    """A decoder as small as they come: embedding, causal layers, logits."""

    def __init__(self, *, vocabulary: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = partial(nn.TransformerEncoderLayer, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList(layer(width, width // 64, norm_first=True) for _ in range(layers))
        self.logits = nn.Linear(width, vocabulary, bias=False)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits for the token after each of ``tokens`` (batch, time)."""
        h = self.embed(tokens) + self.place.weight
        for layer in self.layers:
            h = layer(h, src_mask=self.later, is_causal=True)
        logits: Tensor = self.logits(h)
        return logits


@dataclass(frozen=True, kw_only=True)
class Case:
    """One machine with one model."""

    name: str
    device: str
    most: float
    vocabulary: int
    shape: tuple[int, int]
    """Of a batch of tokens."""
    build: Callable[[], nn.Module]
    steps: int
    """In one turn."""
    turns: int

    def clock(self) -> float:
        """Seconds; on a GPU, once it has done all it was told."""
        if self.device == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()


CPU = Case(
    name="LSTM, one CPU thread",
    device="cpu",
    most=1.03,
    vocabulary=1000,
    # 35 words of 20 sentences, as is usual for WikiText-2.
    shape=(35, 20),
    build=partial(RecurrentModel, vocabulary=1000, embedding=480, hidden=768, layers=1, tied=False),
    # One by one: whatever else the machine does then meets both sides alike.
    steps=1,
    turns=60,
)
GPU = Case(
    name="Transformer, GPU",
    device="cuda",
    most=1.02,
    vocabulary=16384,
    shape=(32, 1024),
    build=partial(Transformer, vocabulary=16384, width=768, layers=11, length=1024),
    steps=10,
    turns=12,
)


def stepper(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """One iteration of the loop, as anybody would write it."""
    tokens = torch.randint(case.vocabulary, case.shape, device=case.device)
    bf16 = torch.autocast("cuda", torch.bfloat16) if case.device == "cuda" else nullcontext()

    def step() -> None:
        optimizer.zero_grad()
        with bf16:
            logits = model(tokens)
        cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def open_row(case: Case, strategy: Strategy | None, stack: ExitStack) -> Step:
    """A loop with a model of its own, joined or not."""
    torch.manual_seed(0)
    model = case.build().to(case.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if strategy is not None:
        stack.enter_context(fs.join(model, optimizer, strategy))
    return stepper(case, model, optimizer)


def timed(case: Case, step: Step) -> float:
    """Seconds per step of one turn."""
    began = case.clock()
    for _ in range(case.steps):
        step()
    return (case.clock() - began) / case.steps


def compare(case: Case, turns: int) -> list[dict[str, Any]]:
    """All loops in turns; one ratio per turn and strategy."""
    parameters = sum(p.numel() for p in case.build().parameters())
    with ExitStack() as stack:
        bare = open_row(case, None, stack)
        loops = {name: open_row(case, strategy, stack) for name, strategy in STRATEGIES.items()}
        for step in (bare, *loops.values()):
            timed(case, step)
        # Bare before and after each turn of the others: a machine that warms up or slows down does so to both.
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        ratios: dict[str, list[float]] = {name: [] for name in loops}
        before = timed(case, bare)
        for _ in range(turns):
            for name, step in loops.items():
                mine, after = timed(case, step), timed(case, bare)
                seconds[name].append(mine)
                ratios[name].append(mine / ((before + after) / 2))
                before = after
    return [_row(case, name, parameters, ratios[name], seconds[name]) for name in loops]


def _row(case: Case, name: str, parameters: int, ratios: list[float], seconds: list[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "case": case.name,
        "parameters": f"{parameters:,}",
        "strategy": name,
        "ratio": round(middle, 4),
        "quartiles": f"{low:.4f} to {high:.4f}",
        "at most": case.most,
        "ms/step": round(1e3 * statistics.median(seconds), 2),
        "turns": len(ratios),
    }


def main() -> None:
    """Every case that this machine can run."""
    options = arguments("benchmarks.overhead", __doc__ or "").parse_args()
    torch.set_num_threads(1)
    cases = [GPU, CPU] if torch.cuda.is_available() else [CPU]
    progress, rows, met = Progress(len(cases)), [], {}
    for case in cases:
        progress(case.name)
        # Two are the least that have quartiles.
        found = compare(case, 2 if options.quick else case.turns)
        worst = max(row["ratio"] for row in found)
        met[f"{case.name}: {worst} times the bare loop, at most {case.most}"] = worst <= case.most
        rows += found
    if GPU not in cases:
        rows.append({"case": GPU.name, "strategy": "no GPU here", "at most": GPU.most})
    folder = options.out or (None if options.quick else RESULTS)
    figures = {"ratios": {f"{row['case']}: {row['strategy']}": row["ratio"] for row in rows if "ratio" in row}}
    finish("benchmarks.overhead", rows, figures=figures, met=met, folder=folder)


if __name__ == "__main__":
    main()
