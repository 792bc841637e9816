"""What is compared where nobody says: six strategies on the embedded text, chosen as docs/compare.md tells."""

from __future__ import annotations

from flockstep.texts.optimizer_texts import OptimizerName

WORKLOAD = "shakespeare(batch=8)"
STEPS = 120
SEEDS = 3
NODES = 16

STRATEGIES = [
    "DataParallel",
    "CELGC(period=8)",
    "Swarm(period=4, codec=Modular(bits=8))",
    "DPSGD(period=8)",
    "HPSGD(period=4)",
    "DiLoCo(period=8)",
]
"""The baseline and five others."""

_ON_THE_TEXT = 0.04
"""AdamW's learning rate there: of 0.005, 0.01, 0.02, 0.04 and 0.08, the best for the baseline."""
_ELSEWHERE = {OptimizerName.adamw: 0.01, OptimizerName.sgd: 0.1, OptimizerName.momentum: 0.1}


def optimizer(workload: str) -> OptimizerName:
    """What nodes step with unless told otherwise."""
    return OptimizerName.adamw if _is_the_text(workload) else OptimizerName.sgd


def learning_rate(workload: str, chosen: OptimizerName) -> float:
    """That of an optimizer, unless told otherwise."""
    return _ON_THE_TEXT if _is_the_text(workload) and chosen is OptimizerName.adamw else _ELSEWHERE[chosen]


def _is_the_text(workload: str) -> bool:
    return workload.strip().startswith("shakespeare")
