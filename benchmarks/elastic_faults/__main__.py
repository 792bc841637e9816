"""What do nodes that die, stand still or are cut off cost an elastic run over slow links?

Nodes in network namespaces, on links of 100 Mbit/s, train a model of a million parameters: DiLoCo, CELGC (with keys:
mutual TLS) and HPSGD, a step as long as a GPU would take for it (the rest of that time it sleeps), a round every 16
steps, patience 1 s. In one run, one after another: kill -9 of a member and of the leader (lowest rank), each started
again at once; SIGSTOP for 5 s; the link of one down for 10 s. Then the same strategy undisturbed, with as many
gradients. Beside it torch elastic (torchrun, local SGD by hand with the same period, a snapshot every 5 rounds).
At last networks that fall into two parts for a while, 3:2 and 2:2.

A second lost is one without progress beyond the longest that a step took in the calm before the first misfortune; of
the other nodes, the one that lost most counts. What torch does again after a restart is no progress.

Bars: the others lose at most 2 s at the median; who is started again finishes a round within the time its state takes
to travel and 3 s, from when fs.join is called; the loss is within 3% of the undisturbed run's; parted 3:2 only the
larger side goes on, and loses nothing; parted 2:2 neither does, and both go on after.
Needs Linux and root, as it builds networks; about 15 minutes.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.elastic_faults import ours, theirs
from benchmarks.elastic_faults.misfortunes import BACK, CUT, LEADER, MEMBER, STOPPED
from benchmarks.elastic_faults.node import PERIOD
from benchmarks.elastic_faults.ours import Kind
from benchmarks.elastic_faults.parted import Parting, parted
from benchmarks.elastic_faults.rows import Row, Setting
from benchmarks.report import Progress, arguments, finish, table
from flockstep.compare.lab.commands import Missing

NAME = "benchmarks.elastic_faults"
RESULTS = Path(__file__).parents[1] / "results"
LOST, ADDED, APART = 2.0, 3.0, 0.03
PATIENCE = 1.0
WHOLE = Setting(
    nodes=4,
    rate="100 Mbit/s",
    patience=PATIENCE,
    step_seconds=0.05,
    seconds={STOPPED: 5.0, CUT: 10.0},
    misfortunes=(MEMBER, LEADER, STOPPED, CUT),
    calm=6,
)
QUICK = WHOLE._replace(
    nodes=3, rate="400 Mbit/s", step_seconds=0.02, misfortunes=(LEADER,), calm=2, seconds={STOPPED: 2.0}
)
KINDS = (Kind("DiLoCo"), Kind("CELGC", keys=True), Kind("HPSGD"))
PARTINGS = (Parting(3, 2, 60.0), Parting(2, 3, 20.0), Parting(2, 2, 60.0))
QUICK_PARTINGS = (Parting(2, 1, 3.0),)
_NOT_JUDGED = ("seconds lost at the median", "loss within 3%", "parted 2:2")


def main() -> None:
    """All runs, judged and told."""
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument("--beside", default="", help="what else the machine did meanwhile, to be told with the rows")
    options = parser.parse_args()
    # So that an end by SIGTERM is an orderly one, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)
    quick = options.quick
    setting, kinds = (QUICK, KINDS[:1]) if quick else (WHOLE, KINDS)
    try:
        rows, met = measure(setting, kinds, QUICK_PARTINGS if quick else PARTINGS, quick=quick)
    except Missing as reason:
        print(f"elastic_faults cannot run here: {reason}")
        print(json.dumps({"name": NAME, "skipped": str(reason), "met": {}}))
        return
    note = (
        f"{setting.nodes} nodes, {setting.rate}, steps of {setting.step_seconds * 1000:g} ms, a round every {PERIOD}, "
        f"patience {setting.patience:g} s. Beside it ran: {options.beside or 'not told'}."
    )
    kept = [row | {"beside": options.beside} for row in rows] if options.beside else rows
    figures = {
        "lost by each misfortune": lost_by_run(rows),
        "not judged": list(_NOT_JUDGED) if quick else [],
        "beside": options.beside,
    }
    finish(NAME, kept, figures=figures, met=met, folder=options.out or (None if quick else RESULTS), note=note)


def measure(
    setting: Setting, kinds: tuple[Kind, ...], partings: tuple[Parting, ...], *, quick: bool
) -> tuple[list[Row], dict[str, bool]]:
    """Every run; its rows, and what was met."""
    say = Progress((1 if quick else 2) * len(kinds) + 1 + len(partings))
    rows: list[Row] = []
    met: dict[str, bool] = {}

    def take(those: list[Row]) -> None:
        # As they come: should a later run fail, they are not lost.
        print(table(those), file=sys.stderr, flush=True)
        rows.extend(those)

    for kind in kinds:
        say(f"{kind.name}, {len(setting.misfortunes)} misfortunes")
        those, gradients = ours.disturbed(kind, setting)
        take(those)
        if not quick:
            say(f"{kind.name}, undisturbed")
            take([ours.undisturbed(kind, setting, gradients)])
    events = [row for row in rows if "seconds lost" in row]
    if not quick:
        met |= lost_bar(events) | dict(loss_bar(kind, rows) for kind in kinds)
    met |= back_bar(events)
    say(theirs.NAME)
    # All of theirs are started again when one dies, which takes as long as everything else of a quick run.
    take(theirs.disturbed(setting._replace(nodes=2, misfortunes=(STOPPED,)) if quick else setting))
    for parting in partings:
        say(f"parted {parting.name}")
        sides = parted(parting, setting)
        take(sides)
        met |= parted_bars(parting, sides)
    return rows, met


def lost_by_run(rows: list[Row]) -> dict[str, list[float]]:
    """Of every run, the seconds lost by each misfortune and the return from it."""
    lost: dict[str, list[float]] = {}
    for row in rows:
        if "lost with what led to it" in row:
            lost.setdefault(row["run"], []).append(row["lost with what led to it"])
    return lost


def lost_bar(events: list[Row]) -> dict[str, bool]:
    """What the others lose."""
    median = statistics.median(row["seconds lost"] for row in events)
    most = max(row["seconds lost"] for row in events)
    told = (
        f"the others lose {median:.2f} s at the median of {len(events)} events ({most:.2f} at most), at most {LOST:g}"
    )
    return {told: median <= LOST}


def back_bar(events: list[Row]) -> dict[str, bool]:
    """How soon who is started again has finished a round."""
    back = [row for row in events if row["event"] == BACK]
    over = [row["seconds to a round"] - row["its state travels"] for row in back]
    told = (
        f"who is started again has finished a round {max(over):.2f} s at most beyond its state's travel "
        f"({len(back)} times), at most {ADDED:g}"
    )
    return {told: max(over) <= ADDED}


def loss_bar(kind: Kind, rows: list[Row]) -> tuple[str, bool]:
    """How good the model is in the end."""
    disturbed, calm = (
        next(row["loss"] for row in rows if row["run"] == kind.name and row["event"] == event)
        for event in ("end", "undisturbed")
    )
    ratio = disturbed / calm
    return f"{kind.name}: a loss {ratio:.3f} times the undisturbed run's, within {APART:.0%}", ratio <= 1 + APART


def parted_bars(parting: Parting, sides: list[Row]) -> dict[str, bool]:
    """Who may go on, did; who may not, waited; and nothing was lost."""
    larger, smaller = sorted(sides, key=lambda side: -len(side["nodes"]))
    is_even = parting.first == parting.second
    met: dict[str, bool] = {}
    name = f"parted {parting.name}"
    for side in sides if is_even else [smaller]:
        told = f"{name}: nodes {side['nodes']} wait after {side['steps meanwhile']} steps, fewer than two periods"
        met[told] = largest(side["steps meanwhile"]) < 2 * PERIOD
    if is_even:
        told = f"{name}: both go on {larger['all together after']} s after, each step once, with the same view"
        met[told] = all(side["every step once"] and not side["left out"] for side in sides)
    else:
        told = f"{name}: nodes {larger['nodes']} go on, {larger['rounds meanwhile']} rounds meanwhile, each step once"
        met[told] = largest(larger["rounds meanwhile"]) > 1 and larger["every step once"] and not larger["left out"]
    met[f"{name}: all end at step {larger['last step']}, with the same model to the bit"] = (
        larger["models alike"] and larger["last step"] == smaller["last step"]
    )
    return met


def largest(text: Any) -> int:
    """Of "3" or "3 to 5"."""
    return int(str(text).split()[-1])


if __name__ == "__main__":
    main()
