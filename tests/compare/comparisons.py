"""Comparisons as a command line would make them."""

from flockstep.compare import settings

DEFAULTS = {
    "strategies": None,
    "workload": "quadratics",
    "nodes": 4,
    "link": "100 Mbit/s",
    "latency": "20 ms",
    "step_time": "50 ms",
    "spread": 0.0,
    "straggler": None,
    "slowdown": None,
    "crash": None,
    "pause": None,
    "partition": None,
    "drop": None,
    "real": False,
    "steps": 10,
    "lr": None,
    "rates": None,
    "optimizer": None,
    "seeds": 2,
    "target": None,
}


def made(**given):
    return settings.comparison({**DEFAULTS, **given}, set(given), "flockstep compare")
