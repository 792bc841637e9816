"""Pong on two cores: HSA2C's torch engine beside stable-baselines3's A2C, with the same network.

Environment steps per second while training, in turns within one run. The network is stable-baselines3's CnnPolicy (the
Nature network) for both; the smaller network of A3C is told beside it. stable-baselines3 is given the same emulator and
screens, in eight ways: one and two torch threads; 8 and 16 environments in its DummyVecEnv, 8 in its SubprocVecEnv, and
16 in the emulator's own batches on two threads. In each turn ours is measured against the fastest of them in it.
Needs stable-baselines3, gymnasium and ale-py (pip install stable-baselines3 ale-py); takes 7 minutes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.report import Progress, arguments, finish

if TYPE_CHECKING:
    from benchmarks.a2c.pong_ways import Way

NAME = "benchmarks.a2c.pong"
RESULTS = Path(__file__).parent.parent / "results"
LEAST = 1.5
THEIRS = (
    *(("DummyVecEnv", envs, threads) for envs in (8, 16) for threads in (1, 2)),
    *(("SubprocVecEnv", 8, threads) for threads in (1, 2)),
    *(("batched", 16, threads) for threads in (1, 2)),
)


def ways(quick: bool) -> list[Callable[[], Way]]:
    """Ours first."""
    # Here, so that --help needs nothing installed.
    from benchmarks.a2c.pong_ways import Emulator, Ours, Theirs

    if quick:
        return [partial(Ours, "CnnPolicy", 2, 8), *(partial(Theirs, *numbers) for numbers in THEIRS[:2])]
    ours = [
        partial(Ours, "CnnPolicy", 2, 8),
        partial(Ours, "CnnPolicy", 1, 8),
        partial(Ours, "A3CPolicy", 2, 8),
        partial(Ours, "A3CPolicy", 1, 8),
    ]
    return [*ours, *(partial(Theirs, *numbers) for numbers in THEIRS), partial(Emulator, 8)]


def measure(makers: list[Callable[[], Way]], turns: int, seconds: float) -> dict[str, list[float]]:
    """Steps per second of every way in every turn. One that only warms up comes first."""
    progress = Progress(len(makers) * (turns + 1))
    made: list[Way] = []
    try:
        for make in makers:
            way = make()
            made.append(way)
            progress(f"{way.name}, warming up")
            way.run(min(1.0, seconds))
        found: dict[str, list[float]] = {way.name: [] for way in made}
        for turn in range(turns):
            for way in made:
                progress(f"{way.name}, turn {turn + 1} of {turns}")
                found[way.name].append(way.run(seconds))
    finally:
        for way in made:
            way.close()
    return found


def row(name: str, rates: list[float]) -> dict[str, Any]:
    """What is told of a way."""
    return {
        "way": name,
        "steps/s": round(statistics.median(rates)),
        "least": round(min(rates)),
        "most": round(max(rates)),
    }


def over(rates: list[float], best: list[float]) -> list[float]:
    """Turn by turn."""
    return [mine / theirs for mine, theirs in zip(rates, best, strict=True)]


def main() -> None:
    """Measure, and say what was met."""
    options = arguments(NAME, __doc__ or "").parse_args()
    torch.set_num_threads(1)
    turns, seconds = (1, 0.5) if options.quick else (4, 6.0)
    found = measure(ways(options.quick), turns, seconds)
    names = list(found)
    ours = names[0]
    best = [max(found[name][turn] for name in names if name.startswith("SB3")) for turn in range(turns)]
    ratios = over(found[ours], best)
    ratio = statistics.median(ratios)
    rows = [
        {**row(name, rates), "to SB3's best": round(statistics.median(over(rates, best)), 2)}
        for name, rates in found.items()
    ]
    finish(
        NAME,
        rows,
        figures={
            "steps/s": {r["way"]: r["steps/s"] for r in rows},
            "ratio to SB3's best, turn by turn": [round(r, 3) for r in ratios],
        },
        met={
            f"{ratio:.2f}x the steps/s of SB3's best, at least {LEAST}": ratio >= LEAST,
        },
        folder=options.out or (None if options.quick else RESULTS),
    )


if __name__ == "__main__":
    main()
