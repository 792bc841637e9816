"""``join``: one line in the user's own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from flockstep import check
from flockstep.backends.loop import (
    checkpoint,
    initial_sync,
    island_members,
    place,
    requirements,
    shown_losses,
    snapshots,
)
from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.island import Island
from flockstep.backends.loop.island_model import IslandModel
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.loop.outsiders import Outsiders
from flockstep.backends.loop.several_optimizers import as_one
from flockstep.backends.loop.stepping import Stepping
from flockstep.backends.real.join.joined import alone, started_by_others
from flockstep.backends.real.join.late_join import join_late
from flockstep.budget import Budget, Ledger
from flockstep.elastic import Elastic, elastic_of, from_environment
from flockstep.exports.tensorboard import Scalars, TensorBoard
from flockstep.strategy import Strategy, describe, is_one_sided, steps_with_own_gradients, takes_equal_steps


def rank() -> int:
    """This node's number, from 0, where this code runs: under ``launch``, ``simulate`` or torchrun; 0 alone.

    Example:
        torch.manual_seed(fs.rank())  # data of its own for every node
    """
    return current_seat().rank


def size() -> int:
    """How many nodes there are where this code runs; 1 alone.

    Example:
        batch = 256 // fs.size()
    """
    return current_seat().size


def progress(shape: Callable[[float], float]) -> Callable[[int], float]:
    """A schedule for ``LambdaLR`` that follows what *all* nodes have spent of the budget.

    Local steps would be a poor measure where one node takes four times as many as another. Before the join, the run is
    at its beginning.

    Args:
        shape: Maps the share of the budget that is spent, from 0 to 1, to a factor of the learning rate.

    Returns:
        A function for ``torch.optim.lr_scheduler.LambdaLR``. It needs ``join(..., budget=...)``.

    Example:
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, fs.progress(lambda share: 1 - share))
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
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    strategy: Strategy,
    *,
    budget: Budget | None = None,
    resume: str | Path | None = None,
    save_every: int | None = None,
    stateful: Sequence[Any] = (),
    tensorboard: TensorBoard | str | Path | None = None,
    not_finite: Literal["skip", "raise"] = "skip",
    elastic: bool | Elastic | None = None,
    island: Any = None,
) -> Iterator[JoinedNode]:
    """Train this model with others: inside the ``with``, ``optimizer.step()`` is a step of the strategy.

    The loop, the optimizer and its schedulers stay as they are; without the ``with`` line the script trains alone. At
    its beginning nodes compare strategy, parameter names, shapes and dtypes, and all take node 0's weights. A model
    that is not finite never leaves its node. What cannot be trained right is refused, here or at the step where it
    shows.

    Args:
        model: The module to train, on its device and in its dtype already.
        optimizer: Its torch optimizer, or a list of several, ``[muon, adamw]``, which together have all parameters that
            train: a step of the strategy is one step of each.
        strategy: What nodes exchange, and when: ``fs.LocalSGD(period=8)``. The same on every node.
        budget: The work of all nodes together, for ``node.batches(loader)``, ``node.progress`` and ``fs.progress``.
            None: the loop decides when it ends.
        resume: A folder of checkpoints: the newest complete one is taken up (``node.step_count`` says where it stood),
            or training starts anew if there is none. None: training starts anew.
        save_every: Steps between two checkpoints, which are written into ``resume``. None: none is written.
        stateful: Further things with a ``state_dict`` to keep in checkpoints: schedulers, a GradScaler.
        tensorboard: A folder where node 0 writes scalars (logged losses, spread, bytes, where the seconds go, steps per
            second), or a ``flockstep.exports.tensorboard.TensorBoard``. None: none are written.
        not_finite: What becomes of a gradient that is not finite: "skip" skips the step, and counts it in the report as
            "not finite"; "raise" ends the loop with ``Diverged``, which names node, step and tensor.
        elastic: Whether a strategy that takes means goes on when nodes die, and takes in nodes that come: True, or an
            ``Elastic`` that says when; on every node alike. ``resume`` is then a folder of each node's own. In the
            simulator ``simulate`` is told. None: as ``fs.launch`` or ``flockstep run --elastic`` was told.
        island: Which processes train this model together, as one node: a ``DeviceMesh`` of one dimension, or a process
            group. For DDP, and for replicas whose gradients you average. None: those among whom the model is sharded
            (``fully_shard``), or this process alone.

    Returns:
        A context manager that gives the node: ``node.log(loss)``, ``node.average_model()``, ``node.report()`` and more.

    Example:
        with fs.join(model, optimizer, fs.LocalSGD(period=8)) as node:
            train(model, optimizer)  # your own loop
            print(node.report())
    """
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"join.budget must be a Budget, got {budget!r}\n  write fs.Budget(steps=...)")
    check.has("join", "strategy", strategy, "run", kind="a strategy such as CELGC(period=8)")
    if save_every is not None:
        check.whole("join", "save_every", save_every)
        if resume is None:
            raise ValueError("join.save_every saves into the folder that join.resume names; give both")
    check.one_of("join", "not_finite", not_finite, ("skip", "raise"))
    optimizers: list[Any] = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    if not optimizers:
        raise ValueError("join.optimizer must be a torch optimizer, or a list of them, got an empty list")
    group = island_members.group_of(model, island)
    if group is not None:
        # What DDP wraps trains with it, and has names of its own.
        model = model.module if isinstance(model, DistributedDataParallel) else model
    requirements.check_model(model, group)
    requirements.check_optimizers(model, optimizers)
    requirements.check_weights_of_its_own(optimizers, describe(strategy), equal_steps=takes_equal_steps(strategy))
    board = TensorBoard.at(tensorboard)
    seat = current_seat()
    goes_on = seat.elastic or from_environment() if elastic is None else elastic_of(elastic, "join")
    if group is not None:
        island_members.check_join(strategy, elastic=goes_on, budget=budget)
        seat = seat.on_island(island_members.ranks_of(group))
    unseen, fellows = steps_with_own_gradients(strategy), None if group is None else Island(group)
    if fellows is None:
        flat = FlatModel(model, unseen=unseen)
    else:
        # What a strategy of the user's own decides by, nobody here knows.
        watched = not type(strategy).__module__.startswith("flockstep.")
        flat = IslandModel(model, fellows, unseen=unseen, watched=watched)
    one = as_one(optimizers)
    one_sided = is_one_sided(strategy)
    node = seat.seat(model, one, flat, one_sided=one_sided, strategy=describe(strategy), elastic=goes_on)
    node.stateful, node.not_finite = tuple(stateful), not_finite
    node.island, node.column = fellows, 0 if fellows is None else fellows.column
    node.ledger = None if budget is None else Ledger(node, budget, together=not node.outlives_deaths)
    before = place.set_current(seat)
    saves = None if save_every is None or resume is None else (save_every, Path(resume))
    ddp = model.register_forward_pre_hook(requirements.refuse_ddp)
    requirements.joined[model] = group
    try:
        shared = "" if budget is None else f" for {budget.describe(together=not node.outlives_deaths)}"
        description = describe(strategy) + shared
        _enter(seat, node, description, strategy, resume)
        with shown_losses.showing(node), _hooked(node, optimizers, strategy, saves, _scalars(board, node)):
            node.start_computing()
            yield node
            node.stop_computing()
        node.driver.finish()
        seat.leave(node)
        # Others may have come after its last step.
        flat.push()
        # The vector belongs to the loop that ends here; what is kept is its last value.
        node.params = flat.vector.clone()
    except BaseException as error:
        node.driver.abandon()
        seat.fail(node, error)
        raise
    finally:
        ddp.remove()
        requirements.joined.pop(model, None)
        place.set_current(before)
        flat.release()


def _enter(
    seat: place.Place, node: JoinedNode, description: str, strategy: Strategy, resume: str | Path | None
) -> None:
    if not seat.admit(node, description, None if resume is None else Path(resume)):
        node.driver.call(initial_sync.compare(node, description))
        if resume is None or not node.driver.call(checkpoint.load(node, Path(resume))):
            node.driver.call(initial_sync.take_weights_of_first(node))
    node.flat.push()
    snapshots.answer(node)
    node.driver.start(lambda: node.named(strategy.run(node)), node.come_in_again)
    node.flat.push()


@contextmanager
def _hooked(
    node: JoinedNode,
    optimizers: Sequence[torch.optim.Optimizer],
    strategy: Strategy,
    saves: tuple[int, Path] | None,
    scalars: Scalars | None,
) -> Iterator[None]:
    """Every step of the optimizers is a step of the strategy; before and after it, there is some keeping to do."""
    saver, bystanders = _Saver(node, saves), Outsiders(node.model, node.flat, optimizers)

    def begin() -> None:
        node.stop_computing()
        bystanders.check()
        saver.write()
        node.at_boundary()

    def end() -> None:
        saver.mark()
        if scalars is not None:
            scalars.step(node.tally, node.now)

    own = steps_with_own_gradients(strategy)
    try:
        with Stepping(node, optimizers, own_gradients=own, begin=begin, end=end).hooked():
            yield
            saver.write()
    finally:
        if scalars is not None:
            scalars.close(node.tally, node.now)


def _scalars(board: TensorBoard | None, node: JoinedNode) -> Scalars | None:
    scalars = (
        None if board is None or node.column else board.open(node.rank, node.step_count, node.now, virtual=node.virtual)
    )
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


def current_seat() -> place.Place:
    """Where this code runs."""
    return place.current() or join_late() or started_by_others() or alone()
