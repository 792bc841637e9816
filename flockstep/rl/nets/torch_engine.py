"""Lock-free torch workers that train one policy: for larger networks than the compiled engine's, and for any module.

One worker runs in the calling process, and its numbers depend on the seed alone; several run in processes of their own,
on one vector in shared memory, or, where the policy is on a GPU, in turns in this one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flockstep.rl.engine import Tell
from flockstep.rl.environments.copies import Environments
from flockstep.rl.nets.action_draws import draw, likeliest
from flockstep.rl.nets.processes import Processes
from flockstep.rl.nets.shared import Shared
from flockstep.rl.nets.torch_worker import Worker
from flockstep.rl.nets.totals import Totals
from flockstep.rl.nets.turns import Turns
from flockstep.rl.policies.networks import ask
from flockstep.rl.settings import Settings
from flockstep.vector import trainable

MakeEnvironments = Callable[[], Environments]


class TorchEngine:
    """Trains ``policy`` in place. ``make_environments`` is called once by each worker, where it runs.

    Workers act and learn on the device that the policy is on. ``in_turns`` has several of them in this process; it is
    the way where that is no CPU. ``parts`` are those of the environments' actions, for predictions.
    """

    def __init__(
        self,
        policy: nn.Module,
        make_environments: MakeEnvironments,
        settings: Settings,
        *,
        seed: int = 0,
        in_turns: bool | None = None,
        parts: tuple[int, ...] = (),
    ) -> None:
        _refuse_running_statistics(policy)
        self._policy, self._parameters = policy, trainable(policy)
        self._make, self._settings, self._seed, self._parts = make_environments, settings, seed, parts
        self._device = self._parameters[0].device
        self._in_turns = self._device.type != "cpu" if in_turns is None else in_turns
        self._shared = Shared.of(policy, settings.threads, device=self._device if self._in_turns else "cpu")
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._processes: Processes | None = None
        self._turns: Turns | None = None
        self._worker: Worker | None = None
        self._environments: Environments | None = None

    @property
    def updates(self) -> tuple[int, ...]:
        """How many updates each worker has written."""
        return tuple(self._shared.updates.tolist())

    def train(self, *, since: int, until: int, tell: Tell) -> int:
        """Go on from ``since`` environment steps to ``until`` at least, or until ``tell`` says no; gives the steps."""
        self._shared.write(self._parameters)
        self._shared.steps.zero_()
        try:
            if self._settings.threads == 1:
                self._train_here(since, until, tell)
            elif self._in_turns:
                self._train_in_turns(since, until, tell)
            else:
                self._train_in_processes(since, until, tell)
        finally:
            self._shared.read(self._parameters)
        return since + self._taken

    def predict(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """Actions for (count, *shape) observations."""
        with torch.no_grad():
            choice, _ = ask(self._policy, torch.from_numpy(np.ascontiguousarray(observations)).to(self._device))
            drawn = likeliest(choice, self._parts) if deterministic else draw(choice, self._generator, self._parts)
        return drawn.cpu().numpy()

    def state(self) -> Mapping[str, Tensor]:
        """The optimizer's statistics."""
        return {"square_avg": self._shared.squares.cpu().clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The opposite of ``state``."""
        squares = state["square_avg"]
        if squares.shape != self._shared.squares.shape:
            raise ValueError(
                f"this state is of a policy of {squares.numel()} numbers, here are {self._shared.squares.numel()}"
            )
        self._shared.squares.copy_(squares)

    def close(self) -> None:
        """End workers and environments."""
        if self._processes is not None:
            self._processes.close()
        if self._turns is not None:
            self._turns.close()
        if self._environments is not None:
            self._environments.close()
        self._processes = self._turns = self._worker = self._environments = None

    @property
    def _taken(self) -> int:
        return int(self._shared.steps.sum())

    def _train_here(self, since: int, until: int, tell: Tell) -> None:
        if self._worker is None:
            self._environments = self._make()
            self._worker = Worker(
                self._policy, self._environments, self._shared, self._settings, number=0, seed=self._seed
            )
        totals = Totals()
        with _one_thread():
            while not totals.last:
                totals = self._worker.train(since, until)
                if totals.updates or totals.ended:
                    self._shared.read(self._parameters)
                    totals.last |= not tell(totals.tally(since + self._taken))

    def _train_in_turns(self, since: int, until: int, tell: Tell) -> None:
        if self._turns is None:
            self._turns = Turns(self._worker_in_turns, self._settings.threads, self._shared)

        def hear(totals: Totals) -> bool:
            self._shared.read(self._parameters)
            return tell(totals.tally(since + self._taken)) if totals.updates or totals.ended else True

        with _one_thread():
            self._turns.train(since, until, hear)

    def _worker_in_turns(self, number: int) -> Worker:
        policy = copy.deepcopy(self._policy)
        return Worker(policy, self._make(), self._shared, self._settings, number=number, seed=self._seed)

    def _train_in_processes(self, since: int, until: int, tell: Tell) -> None:
        if self._processes is None or self._processes.closed:
            policy = copy.deepcopy(self._policy).cpu()
            self._processes = Processes((policy, self._device, self._make, self._settings, self._seed), self._shared)
        gathered, heard, wanted = Totals(), 0, True

        def hear(totals: Totals) -> bool:
            nonlocal gathered, heard, wanted
            gathered.add(totals)
            heard += 1
            # One report of many workers, not one of each.
            if wanted and heard >= self._settings.threads and gathered.updates:
                self._shared.read(self._parameters)
                wanted = tell(gathered.tally(since + self._taken))
                gathered, heard = Totals(), 0
            return wanted

        self._processes.train(since, until, hear)
        if wanted and (gathered.updates or gathered.ended):
            self._shared.read(self._parameters)
            tell(gathered.tally(since + self._taken))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch's operations in one thread: a few observations are not worth more, and sums come out the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _refuse_running_statistics(policy: nn.Module) -> None:
    for name, module in policy.named_modules():
        if getattr(module, "track_running_stats", False):
            raise ValueError(
                f"HSA2C.policy must not keep running statistics, which workers do not share: {name} does\n"
                "  GroupNorm and LayerNorm need none"
            )
