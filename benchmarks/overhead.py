"""What joining costs a loop that never talks: the joined loop against the bare one, in turns.

The period lies beyond the run, so that all that is left is ours: the gradient as one vector, the clip, the strategy's
coroutine between the optimizer's two hooks. An LSTM of 5 M parameters on one CPU thread, in processor time, because
others may use the machine, too; and where there is a GPU a Transformer of 100 M parameters in bf16 autocast, by the
clock on the wall between two synchronisations. In every turn each loop steps, in an order drawn anew, and two of them
are bare: a ratio is the median over turns against the mean of these two, and what one of them is to the other says
how far such a median can be trusted.

The C library may give memory back to the system after one step and ask for it again in the next; whether it does is a
matter of how blocks happen to lie, differs from process to process, for bare loops as for joined ones, and costs up to
a seventh of a step. Here it is told to keep what it has.
"""

from __future__ import annotations

import ctypes
import random
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
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
BARE = ("bare", "bare again")
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
    turns=150,
)
GPU = Case(
    name="Transformer, GPU",
    device="cuda",
    most=1.02,
    vocabulary=16384,
    shape=(32, 1024),
    build=partial(Transformer, vocabulary=16384, width=768, layers=11, length=1024),
    steps=10,
    turns=20,
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


def compare(case: Case, turns: int, progress: Progress) -> list[dict[str, Any]]:
    """All loops in turns; one ratio per turn and loop."""
    parameters = sum(p.numel() for p in case.build().parameters())
    draw = random.Random(0)
    with ExitStack() as stack:
        loops = {name: open_row(case, strategy, stack) for name, strategy in (dict.fromkeys(BARE) | STRATEGIES).items()}
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for step in loops.values():
            timed(case, step)
        for turn in range(turns):
            if turn % 10 == 0:
                progress(f"{case.name}: turn {turn + 1} of {turns}")
            for name in draw.sample(list(loops), len(loops)):
                seconds[name].append(timed(case, loops[name]))
    first, again = (seconds.pop(name) for name in BARE)
    bare = [(one + other) / 2 for one, other in zip(first, again, strict=True)]
    rows = [_row(case, name, parameters, mine, bare) for name, mine in seconds.items()]
    return [_row(case, BARE[1], parameters, again, first), *rows]


def _row(case: Case, name: str, parameters: int, mine: list[float], bare: list[float]) -> dict[str, Any]:
    ratios = sorted(one / other for one, other in zip(mine, bare, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    # By the signs alone: in 19 of 20 such runs the true median lies between these two.
    aside = max(0, int((len(ratios) + 1) / 2 - 0.98 * len(ratios) ** 0.5) - 1)
    return {
        "case": case.name,
        "parameters": f"{parameters:,}",
        "strategy": name,
        "ratio": round(middle, 4),
        "median within": f"{ratios[aside]:.4f} to {ratios[-1 - aside]:.4f}",
        "quartiles": f"{low:.4f} to {high:.4f}",
        "at most": case.most,
        "ms/step": round(1e3 * statistics.median(mine), 2),
        "turns": len(ratios),
    }


def keep_memory() -> None:
    """Let the C library neither trim its heap nor map large blocks one by one, where it is one that can be told."""
    with suppress(AttributeError, OSError):
        told = ctypes.CDLL(None).mallopt
        trim, map_from = -1, -3
        told(trim, 2**31 - 1)
        told(map_from, 2**25)


def main() -> None:
    """Every case that this machine can run."""
    options = arguments("benchmarks.overhead", __doc__ or "").parse_args()
    torch.set_num_threads(1)
    keep_memory()
    cases = [GPU, CPU] if torch.cuda.is_available() else [CPU]
    # Two are the least that have quartiles.
    turns = [2 if options.quick else case.turns for case in cases]
    progress, rows, met = Progress(sum(-(-n // 10) for n in turns)), [], {}
    for case, n in zip(cases, turns, strict=True):
        found = compare(case, n, progress)
        worst = max(row["ratio"] for row in found if row["strategy"] in STRATEGIES)
        met[f"{case.name}: {worst} times the bare loop, at most {case.most}"] = worst <= case.most
        rows += found
    if GPU not in cases:
        rows.append({"case": GPU.name, "strategy": "no GPU here", "at most": GPU.most})
    folder = options.out or (None if options.quick else RESULTS)
    figures = {"ratios": {f"{row['case']}: {row['strategy']}": row["ratio"] for row in rows if "ratio" in row}}
    finish("benchmarks.overhead", rows, figures=figures, met=met, folder=folder)


if __name__ == "__main__":
    main()
