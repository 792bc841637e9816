"""``join``: one line in the user's own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler

from flockstep import check
from flockstep.backends.loop import checkpoint, entrance, place, snapshots
from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.loop.scaler import is_unscaled, watching
from flockstep.backends.real.joined import alone, started_by_torchrun
from flockstep.backends.real.newcomers import coming_late
from flockstep.budget import Budget, Ledger
from flockstep.exports.tensorboard import Scalars, TensorBoard
from flockstep.strategy import Strategy, describe, is_one_sided


def rank() -> int:
    """This node's number, wherever this code runs: under ``launch``, ``simulate`` or torchrun; 0 alone."""
    return _place().rank


def size() -> int:
    """How many nodes there are; 1 alone."""
    return _place().size


def progress(shape: Callable[[float], float]) -> Callable[[int], float]:
    """For ``LambdaLR(optimizer, fs.progress(shape))``: the factor follows what *all* nodes have spent of the budget.

    ``shape`` maps that, from 0 to 1, to a factor: ``lambda p: 1 - p``. Local steps would be a poor measure where one
    node takes four times as many as another. Before the join, the run is at its beginning.
    """
    seen = 0.0

    def factor(epoch: int) -> float:
        nonlocal seen
        here = place.current()
        if here is not None and here.last is not None:
            seen = here.last.progress
        return shape(seen)

    return factor


@contextmanager
def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy,
    *,
    budget: Budget | None = None,
    resume: str | Path | None = None,
    every: int | None = None,
    also: Sequence[Any] = (),
    tensorboard: TensorBoard | str | Path | None = None,
) -> Iterator[JoinedNode]:
    """Train this model with others: inside the ``with``, ``optimizer.step()`` is a step of the strategy.

    The loop, the optimizer and its schedulers stay as they are; without the ``with`` line the script trains alone. At
    the door nodes compare strategy, parameter names, shapes and dtypes, and all take node 0's weights. ``budget`` is
    the work of all nodes together, for ``node.batches(loader)``, ``node.progress`` and ``fs.progress``. ``resume``
    names a folder: the newest complete checkpoint there is taken up (``node.step_count`` says where it stood), or
    training starts anew if there is none; with ``every`` one is written there every so many steps. ``also`` are further
    things with a ``state_dict`` to keep in it: schedulers, a GradScaler. ``tensorboard`` names a folder where node 0
    writes scalars: logged losses, spread, bytes, where the seconds go, steps per second; or it is a ``TensorBoard``.
    """
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"join.budget must be a Budget, got {budget!r}\n  write fs.Budget(steps=...)")
    check.has("join", "strategy", strategy, "run", kind="a strategy such as CELGC(period=8, gamma=1.0)")
    if every is not None:
        check.whole("join", "every", every)
        if resume is None:
            raise ValueError("join.every saves into the folder that join.resume names; give both")
    _check_optimizer(model, optimizer)
    board = TensorBoard.at(tensorboard)
    seat = _place()
    flat = FlatModel(model)
    node = seat.seat(model, optimizer, flat, one_sided=is_one_sided(strategy), strategy=describe(strategy))
    node.also = tuple(also)
    node.ledger = None if budget is None else Ledger(node, budget, together=not node.one_sided)
    before = place.set_current(seat)
    saves = None if every is None or resume is None else (every, Path(resume))
    try:
        told = describe(strategy) + (f" for {budget.told(together=not node.one_sided)}" if budget else "")
        _enter(seat, node, told, strategy, resume)
        with _hooked(node, saves, _scalars(board, node)):
            node.start_computing()
            yield node
            node.stop_computing()
        node.driver.finish()
        seat.leave(node)
    except BaseException as error:
        node.driver.abandon()
        seat.fail(node, error)
        raise
    finally:
        place.set_current(before)
        flat.release()


def _enter(seat: place.Place, node: JoinedNode, told: str, strategy: Strategy, resume: str | Path | None) -> None:
    if seat.admit(node, told):
        if resume is not None:
            checkpoint.load_own(node, Path(resume))
    else:
        node.driver.call(entrance.compare(node, told))
        if resume is None or not node.driver.call(checkpoint.load(node, Path(resume))):
            node.driver.call(entrance.take_weights_of_node_0(node))
    node.flat.push()
    snapshots.answer(node)
    node.driver.start(strategy.run(node))
    node.flat.push()


@contextmanager
def _hooked(node: JoinedNode, saves: tuple[int, Path] | None, scalars: Scalars | None) -> Iterator[None]:
    """The two official hooks of the optimizer, and an eye on GradScaler."""
    fired, saver = False, _Saver(node, saves)

    def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal fired
        fired = True
        if kwargs.get("closure") is not None or any(callable(argument) for argument in args[1:]):
            raise NotImplementedError("an optimizer that calls a closure computes gradients where no hook sees them")
        node.stop_computing()
        saver.write()
        node.driver.before_step()
        node.start_computing()

    def after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        node.stop_computing()
        node.driver.after_step()
        saver.mark()
        if scalars is not None:
            scalars.step(node.tally, node.now)
        node.start_computing()

    def scaled(scaler: GradScaler, step: Callable[[], Any]) -> Any:
        nonlocal fired
        fired = False
        node.driver.scaled, refused = True, node.driver.refused
        if not is_unscaled(scaler, node.optimizer):
            scaler.unscale_(node.optimizer)
        result = step()
        if not fired:
            # The scaler refused: still an attempt, so that exchanges stay in step, but nothing may move.
            before(node.optimizer, (node.optimizer,), {})
            after(node.optimizer, (node.optimizer,), {})
        node.tally.skipped += node.driver.refused - refused
        return result

    hooks = (node.optimizer.register_step_pre_hook(before), node.optimizer.register_step_post_hook(after))
    try:
        with watching(node.optimizer, scaled):
            yield
            saver.write()
    finally:
        for hook in hooks:
            hook.remove()
        if scalars is not None:
            scalars.close(node.tally, node.now)


def _scalars(board: TensorBoard | None, node: JoinedNode) -> Scalars | None:
    scalars = None if board is None else board.open(node.rank, node.step_count, node.now, virtual=node.virtual)
    if scalars is not None:
        node.onlookers = (*node.onlookers, scalars.row)
    return scalars


class _Saver:
    """Saves every so many steps: marked when a step ends, written when the next begins.

    By then schedulers and scalers have had their turn, and weights have not moved; what has is kept in the mark.
    """

    def __init__(self, node: JoinedNode, saves: tuple[int, Path] | None) -> None:
        self._node, self._saves = node, saves
        self._moment: checkpoint.Moment | None = None

    def mark(self) -> None:
        if self._saves is not None and self._node.step_count % self._saves[0] == 0 and self._node.driver.at_boundary:
            self._moment = checkpoint.Moment.of(self._node)

    def write(self) -> None:
        if self._saves is not None and self._moment is not None:
            checkpoint.save(self._node, self._saves[1], self._moment)
            self._moment = None


def _place() -> place.Place:
    return place.current() or coming_late() or started_by_torchrun() or alone()


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"join.optimizer must be a torch optimizer, got {optimizer!r}")
    ours = {id(parameter) for parameter in model.parameters()}
    for group in optimizer.param_groups:
        if any(id(parameter) not in ours for parameter in group["params"]):
            raise ValueError(
                "join.optimizer holds a parameter that join.model does not have\n"
                "  give the module that holds all of them"
            )
