"""Who reaches a validation loss first, over a real slow link?

Nodes in network namespaces whose links are limited to a rate train a character LSTM on the embedded text, each pinned
to a core: torch DDP, LocalSGD, DiLoCo, CoCoD, StreamingDiLoCo and HPSGD, with the same model, Adam, rate and batches.
Every few steps each node puts its model aside; when all have run, their averages are validated, and the time at which
each first reached the target is told. Validation takes no time of the race, and nobody stops for it.

Everybody has their defaults, but for periods.

Bars: HPSGD at its default is there before DDP on every link; it or a member of its family is first of all; at
20 Mbit/s the best of them is at least 5 times faster than DDP.
Needs root, as it builds networks; 8 minutes per link speed and seed.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.race.runners import ALONE, DDP, FAMILY, HPSGD, RUNNERS
from benchmarks.race.task import build, validation_loss
from benchmarks.report import arguments, finish
from benchmarks.slowlink.crew import run_everywhere
from flockstep.compare.lab.commands import Missing
from flockstep.compare.lab.lab import Lab

NAME = "benchmarks.race"
RESULTS = Path(__file__).parents[1] / "results"
RATE, TARGET = 5e-3, 2.1
SLOW, SLOW_RATIO = "20 Mbit/s", 5.0
_LONGEST = 3000.0

Row = dict[str, Any]


def main() -> None:
    """Races on every link, judged and told."""
    options = _options()
    # So that an end by SIGTERM is an orderly one, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)
    rows: list[Row] = []
    try:
        for link in options.links:
            for seed in options.seeds:
                rows += race(options, link, seed)
    except Missing as reason:
        print(f"race cannot run here: {reason}")
        print(json.dumps({"name": NAME, "skipped": str(reason), "met": {}}))
        return
    folder = options.out or (None if options.quick else RESULTS)
    note = (
        f"{options.nodes} nodes, LSTM of {options.hidden} units, batch {options.batch} x 32 characters per node, "
        f"Adam at {RATE:g}; target: a validation loss of {options.target:g}, looked at every {options.every} steps."
    )
    finish(
        NAME if options.nodes == 2 else f"{NAME}_{options.nodes}_nodes",
        rows,
        figures={"seeds": options.seeds},
        met=bars(rows),
        folder=folder,
        note=note,
    )


def _options() -> Namespace:
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument("--nodes", type=int, default=2, help="how many (default: %(default)s)")
    parser.add_argument("--links", nargs="+", metavar="RATE", help='link rates (default: "100 Mbit/s" "20 Mbit/s")')
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of weights and batches (default: 0)")
    parser.add_argument("--steps", type=int, help="how many each runner takes (default: 192)")
    parser.add_argument("--target", type=float, help=f"validation loss to reach (default: {TARGET})")
    options = parser.parse_args()
    quick = options.quick
    options.hidden, options.batch, steps, options.every = (32, 4, 16, 4) if quick else (256, 64, 192, 8)
    options.steps = options.steps or steps
    options.target = options.target or (4.0 if quick else TARGET)
    options.links = options.links or (["100 Mbit/s"] if quick else ["100 Mbit/s", SLOW])
    return options


def race(options: Namespace, link: str, seed: int) -> list[Row]:
    """All runners over one link, with one seed."""
    names = list(RUNNERS)
    with tempfile.TemporaryDirectory() as folder, Lab(nodes=options.nodes, rate=link) as lab:
        words = [f"--{name}={getattr(options, name)}" for name in ("hidden", "batch", "steps", "every")]
        words += [f"--seed={seed}", f"--rate={RATE}", f"--folder={folder}", "--runners", *names]
        print(f"{link}, seed {seed}: {len(names)} runners", file=sys.stderr, flush=True)
        everyones = run_everywhere(lab, f"{NAME}.worker", *words, timeout=_LONGEST)
        return [judge(name, everyones, Path(folder), options, link, seed) for name in names]


def judge(
    name: str, everyones: list[dict[str, list[float]]], folder: Path, options: Namespace, link: str, seed: int
) -> Row:
    """One runner's row: when the average model first was good enough."""
    # A moment of the race is when the last node had come so far.
    times = [max(node[name][k] for node in everyones) for k in range(len(everyones[0][name]))]
    alone = [max(node[ALONE][k] for node in everyones) for k in range(len(everyones[0][ALONE]))]
    row: Row = {"link": link, "seed": seed, "runner": name, "share of bare steps/s": round(alone[-1] / times[-1], 3)}
    if name == ALONE:
        return row
    model, _ = build(options.hidden, RATE, seed)
    losses = []
    for number in range(len(times)):
        stem = f"{list(RUNNERS).index(name)}-{number}"
        nodes = [load_file(folder / f"{stem}-{rank}.safetensors") for rank in range(options.nodes)]
        model.load_state_dict({key: torch.stack([node[key] for node in nodes]).mean(0) for key in nodes[0]})
        losses.append(validation_loss(model))
    reached = next((k for k, loss in enumerate(losses) if loss <= options.target), None)
    return row | {
        "seconds to target": None if reached is None else round(times[reached], 2),
        "steps to target": None if reached is None else (reached + 1) * options.every,
        "last loss": round(losses[-1], 4),
        "seconds in all": round(times[-1], 1),
    }


def bars(rows: list[Row]) -> dict[str, bool]:
    """Who was first on each link, by the mean over seeds."""
    met = {}
    for link in dict.fromkeys(row["link"] for row in rows):
        took = {
            name: statistics.fmean(
                row["seconds to target"] or float("inf")
                for row in rows
                if row["link"] == link and row["runner"] == name
            )
            for name in RUNNERS
            if name != ALONE
        }
        first = min(took, key=lambda name: took[name])
        best = min(FAMILY, key=lambda name: took[name])
        told = f"{first} is first with {took[first]:.4g} s; best of HPSGD's family: {best}, {took[best]:.4g} s"
        ahead = took[DDP] / took[HPSGD]
        met[f"{link}: HPSGD at its default is {ahead:.3g} times faster than DDP, more than 1"] = ahead > 1
        met[f"{link}: {told}"] = first in FAMILY
        if link == SLOW:
            ratio = took[DDP] / took[best]
            met[f"{link}: {best} is {ratio:.3g} times faster than DDP, at least {SLOW_RATIO:g}"] = ratio >= SLOW_RATIO
    return met


if __name__ == "__main__":
    main()
