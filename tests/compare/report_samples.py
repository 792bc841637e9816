"""Comparisons made up by hand, with numbers from a seed: nothing is run."""

import numpy as np

from flockstep.compare.folder import Outcome, Record, Results
from flockstep.timeline import KINDS, Timeline
from flockstep.trace import NodeReport, Row, Trace

NAMES = ["DataParallel", "CELGC", "Swarm", "DPSGD", "HPSGD", "DiLoCo", "Gossip", "LocalSGD", "Ninth"]


def record(strategies=2, seeds=3, nodes=4, **changes):
    names = NAMES[:strategies]
    told = {
        "command": "flockstep compare " + " ".join(names),
        "versions": {"flockstep": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
        "workload": "quadratics",
        "cluster": {
            "nodes": nodes,
            "link": "100 Mbit/s",
            "latency": "20 ms",
            "step": "50 ms",
            "spread": 0.0,
            "stragglers": ["1:4x"] if nodes > 1 else [],
            "faults": [],
        },
        "strategies": [f"{name}(period={index})" for index, name in enumerate(names)],
        "labels": names,
        "optimizers": ["SGD(lr=0.1)"] * strategies,
        "seeds": list(range(seeds)),
        "steps": 60,
        "samples_per_step": 8 * nodes,
        "samples": "samples",
        "real": False,
        "target": None,
    }
    return Record(**{**told, **changes})


def rows(losses, seconds=None, nbytes=None):
    places = range(len(losses)) if seconds is None else seconds
    sent = [100.0 * place for place in places] if nbytes is None else nbytes
    return [
        Row(float(place), 10 * k, float(loss), float(count), 0.0)
        for k, (place, loss, count) in enumerate(zip(places, losses, sent, strict=True))
    ]


def timeline(rng, nodes, spans=40, mean=0.05):
    """Every node does one thing after the other, for times as they come, with a break now and then."""
    made = Timeline()
    for rank in range(nodes):
        now = 0.0
        for k in range(spans):
            length = float(rng.exponential(mean)) + 1e-4
            if rng.random() > 0.1:
                made.spend(rank, KINDS[k % 3], now, now + length)
            now += length
        if nodes > 1:
            made.send(rank, (rank + 1) % nodes, int(rng.integers(1, 10**6)))
    return made


def outcome(rng, seed, *, nodes, speed=1.0, spans=0, failure=None):
    """A run whose loss falls from ten or so; ``speed`` makes it short."""
    count = int(rng.integers(18, 23))
    seconds = np.concatenate([[0.0], np.cumsum(rng.uniform(0.5, 1.5, count - 1))]) / speed
    losses = 0.3 + 9 * np.exp(-0.25 * np.arange(count)) * rng.uniform(0.9, 1.1, count)
    nbytes = np.concatenate([[0], np.cumsum(rng.integers(10**4, 10**6, count - 1))])
    told = timeline(rng, nodes, spans, 20 / speed / max(1, spans)) if spans else None
    reports = [
        NodeReport(
            rank,
            steps=10 * count,
            bytes_sent=int(nbytes[-1]),
            computing=float(rng.uniform(1, 4)),
            waiting=float(rng.uniform(0, 2)),
            talking=float(rng.uniform(0, 3)),
            seconds=10.0 + rank,
        )
        for rank in range(nodes)
    ]
    return Outcome(seed, Trace("", rows(losses, seconds, nbytes), reports, {}, timeline=told), failure)


def comparison(strategies=2, seeds=3, nodes=4, spans=40, **changes):
    rng = np.random.default_rng(strategies * 100 + seeds * 10 + nodes)
    runs = [
        [
            outcome(rng, seed, nodes=nodes, speed=1.0 + index, spans=0 if number else spans)
            for number, seed in enumerate(range(seeds))
        ]
        for index in range(strategies)
    ]
    return Results(record(strategies, seeds, nodes, **changes), runs)
