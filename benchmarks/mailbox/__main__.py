"""What the mailbox leaves of a socket's speed over loopback, and what serving leaves of a training loop's.

Transfer: 100 MB pulled by one process from another, and 1 kB round trips. Every row has a server process of its own for
the whole run and all rows take turns; a ratio is to the bare socket (with TLS: the bare TLS socket) of the same round,
the median over rounds.

Serving while training: two nodes in network namespaces behind links of 1 Gbit/s. Node 0 trains an LSTM on one thread;
node 1 pulls a body from it, or does not, in stretches that alternate, each against the undisturbed stretches
before and after it. Node 1 has a core of its own, since it would be another machine. Node 0 may use both cores, as any
process may that is not held to one; this is what the bar is about, although node 1 is on one of them. Beside it, for
information, all of node 0 is held to a single core, which its loop fills: there not even a bare socket leaves the loop
0.93 of its speed, since the kernel does the work of both sides of the link on it. "Of its time" is how much of a second
the training thread had a processor, against undisturbed: the one cause of a loss that does not depend on how fast the
processor just is. Needs Linux, root, and the commands ip and tc; without them only the first part runs.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.mailbox import serving, transfer
from benchmarks.mailbox.node import SPARE_CORE
from benchmarks.mailbox.rows import BARE, BARE_TLS, BOX, BOX_TLS
from benchmarks.mailbox.ways import Place
from benchmarks.report import Progress, arguments, finish, keep, table
from flockstep.backends.real.mailbox.endpoint import LOOPBACK
from flockstep.backends.real.security import keys
from flockstep.compare.lab.commands import Missing

RESULTS = Path(__file__).parents[1] / "results"
NAME = "benchmarks.mailbox"
LEAST_OF_BARE, LEAST_KEPT = 0.8, 0.93
Rows = list[dict[str, Any]]


def main() -> None:
    """Both parts, if the machine can."""
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument(
        "--part", choices=("both", "transfer", "serving"), default="both", help="(default: %(default)s)"
    )
    options = parser.parse_args()
    # So that an end by SIGTERM is an orderly one, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)
    rounds, stretches = (1, 1) if options.quick else (60, 20)
    progress = Progress(rounds + 2)
    with tempfile.TemporaryDirectory() as name:
        place = Place(LOOPBACK, Path(name))
        keys.create(place.folder, 2)
        moved = [] if options.part == "serving" else transfer.compare(place, rounds, progress)
        progress("serving while training")
        served, reason = ([], "it was not asked for") if options.part == "transfer" else serve(place, stretches)
    folder = options.out or (None if options.quick else RESULTS)
    if served and folder:
        keep(f"{NAME}_serving", served, folder)
    note = table(served, "\nServing while training:") if served else f"Serving while training was left out: {reason}"
    figures = {
        "of_bare": {row["way"]: row["ratio"] for row in moved if "ratio" in row},
        "training_keeps": {f"{row['trainer has']}: {row['served by']}": row["training keeps"] for row in served},
    }
    finish(NAME, moved, figures=figures, met=bars(moved, served), folder=folder, note=note)


def serve(place: Place, rounds: int) -> tuple[Rows, str]:
    """The second part's rows, or why there are none."""
    try:
        return serving.compare(place, rounds), ""
    except Missing as missing:
        return [], str(missing)


def bars(moved: Rows, served: Rows) -> dict[str, bool]:
    """What was to be shown."""
    ratio = {row["way"]: row["ratio"] for row in moved if "ratio" in row}
    met: dict[str, bool] = {
        f"{mine}: {ratio[mine]} of the {bare}, at least {LEAST_OF_BARE}": ratio[mine] >= LEAST_OF_BARE
        for mine, bare in ((BOX, BARE), (BOX_TLS, BARE_TLS))
        if mine in ratio
    }
    for row in served:
        if row["served by"] in (BOX, BOX_TLS) and row["trainer has"] == SPARE_CORE:
            kept, how = row["training keeps"], row["served by"]
            met[f"training keeps {kept} of its speed while serving by {how}, at least {LEAST_KEPT}"] = (
                kept >= LEAST_KEPT
            )
    return met


if __name__ == "__main__":
    main()
