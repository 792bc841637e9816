"""Part B: what a training loop keeps of its speed while its process serves 100 MB bodies over a limited link."""

from __future__ import annotations

import statistics
from itertools import product
from typing import Any

from benchmarks.mailbox.node import HOMES, ROWS
from benchmarks.mailbox.ways import Place, quartiles
from benchmarks.slowlink.crew import run_everywhere
from flockstep.compare.lab.lab import Lab

RATE = "1 Gbit/s"
_LONGEST = 1800.0


def compare(place: Place, rounds: int) -> list[dict[str, Any]]:
    """One row per way to serve; Missing where there can be no such link."""
    with Lab(nodes=2, rate=RATE) as lab:
        words = ["--host", *(node.address for node in lab.nodes), "--folder", str(place.folder)]
        words += ["--rounds", str(rounds)]
        found = run_everywhere(lab, "benchmarks.mailbox.node", *words, timeout=_LONGEST)[0]["turns"]
        turns = {key: [turn for turn in found if (turn["home"], turn["row"]) == key] for key in product(HOMES, ROWS)}
        return [_row(*key, mine, lab.bytes_per_second) for key, mine in turns.items()]


def _row(home: str, name: str, turns: list[dict[str, Any]], link: float) -> dict[str, Any]:
    rate = statistics.median(turn["rate"] for turn in turns)
    low, middle, high = quartiles([turn["share"] for turn in turns])
    return {
        "trainer has": home,
        "served by": name,
        "training keeps": round(middle, 3),
        "quartiles": f"{low:.3f} to {high:.3f}",
        "of its time": round(statistics.median(turn["running"] for turn in turns), 3),
        "steps/s alone": round(statistics.median(turn["alone"] for turn in turns), 1),
        "pulled GB/s": round(rate / 1e9, 4),
        "of the link": round(rate / link, 3),
        "rounds": len(turns),
    }
