"""``check_loop``: whatever a user's loop is like, it trains right, or is refused in a sentence. No third outcome."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flockstep.backends.sim.cluster.compute import Compute
from flockstep.backends.sim.cluster.network import Network
from flockstep.backends.sim.simulate import simulate
from flockstep.joining import join, rank
from flockstep.strategy import Strategy, describe, is_one_sided
from flockstep.testing.parts import LawBroken
from flockstep.testing.zoo import SITUATIONS, Situation
from flockstep.testing.zoo.by_hand import ByHand, contents, seed_cpu
from flockstep.trace import Trace

_ITERATIONS = 6
# Uneven, so that no two things happen at one moment: then nobody's luck decides who comes first.
_HARDWARE: dict[str, Any] = {
    "network": Network(bandwidth="100 Mbit/s", latency="1 ms"),
    "compute": Compute(step="20 ms", spread=0.2),
    "start_skew": 0.0,
}

# Nodes that are threads share torch's random numbers.
_MAKING = threading.Lock()

Run = Callable[..., Trace]
"""``run(train, nodes=) -> Trace``: ``fs.launch``, or what looks like it."""


@dataclass(frozen=True)
class Outcome:
    """What became of a loop on one node."""

    refused: str = ""
    """The error, if it ended with one."""
    holds: dict[str, Tensor] = field(default_factory=dict)
    """All that the model held in the end."""
    steps: int = 0
    process: int = 0


def check_loop(
    strategy: Strategy | Sequence[Strategy],
    *,
    situations: Iterable[Situation] = SITUATIONS,
    nodes: tuple[int, ...] = (1, 2, 3),
    run: Run | None = None,
) -> dict[str, str]:
    """Raise LawBroken unless a strategy can be joined in every situation, or refuses it as it should.

    The loop must come to what the same loop written by hand comes to, on every node. Strategies whose nodes do not wait
    for each other have no one outcome on real nodes: on several, only what must hold for all outcomes is looked at.

    Args:
        strategy: The strategy to check, or several.
        situations: Models, loops, and the same loops by hand (see ``flockstep.testing.zoo``).
        nodes: Numbers of nodes to try.
        run: What starts nodes, such as ``partial(fs.launch, on="threads")``; one run tries all situations. None:
            virtual nodes, a run for each.

    Returns:
        What became of each situation, by name: "right", the sentence by which it is refused, or why it could not be
        tried here.

    Example:
        print(check_loop(MyStrategy(period=4), nodes=(1, 2)))
    """
    strategies = list(strategy) if isinstance(strategy, Sequence) else [strategy]
    here = [situation for situation in situations if not situation.needs()]
    outcomes = {situation.name: situation.needs() or "right" for situation in situations}
    for size in nodes:
        trials = [(one, situation) for one in strategies for situation in here]
        if run is None:
            found = [simulate(partial(_tried, *trial), nodes=size, **_HARDWARE).results for trial in trials]
        else:
            results = run(partial(_all_tried, trials), nodes=size).results
            found = [{number: results[number][i] for number in results} for i in range(len(trials))]
        for (one, situation), nodes_found in zip(trials, found, strict=True):
            where = f"{describe(one)} on {size} node(s), {situation.name}"
            if sentence := situation.refusal(one, size):
                outcomes[situation.name] = sentence
                _is_refused(nodes_found, sentence, where)
            else:
                _is_right(one, situation, size, nodes_found, where, run)
    return outcomes


def _all_tried(trials: list[tuple[Strategy, Situation]]) -> list[Outcome]:
    return [_tried(*trial) for trial in trials]


def _tried(strategy: Strategy, situation: Situation) -> Outcome:
    """The user's loop."""
    with _MAKING:
        seed_cpu()
        made = situation.make()
    optimizers: Any = made.optimizers[0] if len(made.optimizers) == 1 else made.optimizers
    try:
        with join(made.model, optimizers, strategy) as node:
            for k in range(_ITERATIONS):
                situation.loop(made, k, rank())
                if made.scheduler is not None:
                    made.scheduler.step()
    except Exception as error:
        return Outcome(refused=f"{type(error).__name__}: {error}")
    return Outcome(holds=contents(made), steps=node.step_count, process=os.getpid())


def _is_refused(found: dict[int, Outcome], sentence: str, where: str) -> None:
    for number, outcome in found.items():
        if not outcome.refused:
            raise LawBroken(f"{where}: node {number} trains, and should be refused: {sentence}")
        if sentence not in outcome.refused:
            raise LawBroken(f"{where}: refused by other words than {sentence!r}: {outcome.refused}")


def _is_right(
    strategy: Strategy, situation: Situation, size: int, found: dict[int, Outcome], where: str, run: Run | None
) -> None:
    for outcome in found.values():
        if outcome.refused:
            raise LawBroken(f"{where}: does not train: {outcome.refused}")
    hand = ByHand(situation, max(outcome.steps for outcome in found.values()))
    shared = situation.process_wide and run is not None and len({outcome.process for outcome in found.values()}) < size
    if size > 1 and (shared or (run is not None and is_one_sided(strategy))):
        _is_sound(hand, found, where)
        return
    by_hand = hand.run(strategy, size, **_HARDWARE)
    for number in range(size):
        for name, value in found[number].holds.items():
            _is_close(value, by_hand[number][name], situation.tolerance, f"{where}: {name} of node {number}")


def _is_sound(hand: ByHand, found: dict[int, Outcome], where: str) -> None:
    """What holds however nodes have met: what trains is finite, what does not is what it was."""
    start = contents(hand.setting)
    moving = {name for name, p in hand.setting.model.named_parameters() if p.requires_grad}
    moving |= set(hand.setting.statistics)
    for number, outcome in found.items():
        for name, value in outcome.holds.items():
            whose = f"{where}: {name} of node {number}"
            if name in moving:
                if not bool(value.isfinite().all()):
                    raise LawBroken(f"{whose} is not finite")
            elif value.is_floating_point() and not torch.equal(value.nan_to_num(), start[name].nan_to_num()):
                raise LawBroken(f"{whose} is a constant, and has changed")


def _is_close(ours: Tensor, theirs: Tensor, tolerance: float, where: str) -> None:
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        raise LawBroken(f"{where} is {ours.dtype} {tuple(ours.shape)}, by hand {theirs.dtype} {tuple(theirs.shape)}")
    if not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True):
        worst = float((ours - theirs).abs().max())
        raise LawBroken(f"{where} is {worst:.2g} away from the loop written by hand")
