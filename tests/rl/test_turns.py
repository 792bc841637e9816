"""Workers that take turns on one device: the same updates as of one worker, none lost, and games that go on."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("gymnasium", reason="needs pip install 'flockstep[rl]'")

from sides import Glance, Sides, until_it_knows_sides, vector

from flockstep.errors import NodeFailed
from flockstep.rl.environments.copies import InProcess
from flockstep.rl.nets.shared import Shared, write, write_there
from flockstep.rl.nets.torch_engine import TorchEngine
from flockstep.rl.nets.torch_worker import Worker
from flockstep.rl.nets.totals import Totals
from flockstep.rl.nets.turns import Turns
from flockstep.rl.settings import Settings


def engine_of(threads, *, source=Sides, envs=2, **settings):
    torch.manual_seed(1)
    policy = Glance()
    numbers = Settings(threads=threads, envs_per_thread=envs, **{"learning_rate": 7e-4, **settings})
    return policy, TorchEngine(policy, partial(InProcess, source, envs), numbers, in_turns=True)


def heard(totals, told):
    totals.add(told)
    return True


@pytest.mark.slow
def test_one_worker_in_turns_is_the_worker_alone():
    found = []
    for in_turns in (False, True):
        torch.manual_seed(1)
        policy = Glance()
        settings, shared = Settings(envs_per_thread=2), Shared.of(policy, 1)
        worker = Worker(policy, InProcess(Sides, 2), shared, settings, number=0, seed=0)
        totals = Totals()
        if in_turns:
            turns = Turns({0: worker}.__getitem__, 1, shared)
            turns.train(0, 205, partial(heard, totals))
            turns.close()
        else:
            totals = worker.train(0, 205)
        found.append((shared.theta, totals))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1].ended == found[1][1].ended
    assert found[0][1].updates == found[1][1].updates == 21


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.cases(check=1)
@pytest.mark.slow
def test_every_update_counts_and_none_is_lost(threads):
    policy, engine = engine_of(threads)
    before = vector(policy)
    reached = engine.train(since=0, until=1005, tell=lambda tally: True)
    # Whoever had begun when the last step was taken ends what it was at.
    assert 1005 <= reached < 1005 + threads * 10
    assert sum(engine.updates) * 10 == reached
    assert min(engine.updates) > 0
    assert not torch.equal(vector(policy), before)
    again = engine.train(since=reached, until=reached + 10, tell=lambda tally: True)
    assert again >= reached + 10
    engine.close()
    engine.close()


@pytest.mark.thorough
def test_three_in_turns_learn():
    _, engine = engine_of(3, envs=4, learning_rate=lambda remaining: 3e-3, gamma=0.0, ent_coef=0.01)
    scores, _ = until_it_knows_sides(engine)
    engine.close()
    assert np.mean(scores[-100:]) >= 9.5


def test_an_environment_that_fails_is_named_with_its_worker():
    _, engine = engine_of(2, source=partial(Sides, fails_after=20))
    with pytest.raises(NodeFailed, match=r"worker [01] of 2 raised ValueError: the pixels are gone") as told:
        engine.train(since=0, until=10_000, tell=lambda tally: True)
    assert isinstance(told.value.__cause__, ValueError)
    engine.close()


class Counting(Sides):
    """Says in its picture how many steps it has taken."""

    def _picture(self):
        picture = super()._picture()
        picture[0, 0, 0] = self._taken % 250
        return picture


def test_whoever_is_interrupted_goes_on_where_the_games_are(monkeypatch):
    policy, engine = engine_of(3, source=Counting, envs=1)
    calls = []

    def interrupted(self, losses, totals, done, until):
        calls.append(done)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return step(self, losses, totals, done, until)

    step = Worker.step
    monkeypatch.setattr(Worker, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.train(since=0, until=10_000, tell=lambda tally: True)
    for worker in engine._turns._workers:
        taken = worker.environments._copies[0]._taken
        assert int(worker._player._seen[0, 0, 0, 0]) == taken % 250
    views = engine._shared.layout.views(engine._shared.theta)
    assert all(torch.equal(p, view) for p, view in zip(policy.parameters(), views, strict=True))
    assert engine.train(since=30, until=60, tell=lambda tally: True) >= 60
    engine.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_on_a_device_is_the_step_on_the_host(dtype):
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(7, 5)).to(dtype)
    settings = Settings(max_grad_norm=0.5, rms_decay=0.95, rms_eps=1e-3)
    host, there = Shared.of(policy, 1), Shared.of(policy, 1)
    for rate in (0.1, 0.01, 0.0):
        gradients = [torch.randn_like(p) if p.ndim > 1 else None for p in policy.parameters()]
        write(host, gradients, settings, rate)
        write_there(there, settings, torch.tensor(rate), *gradients)
    near = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(there.theta, host.theta, **near)
    torch.testing.assert_close(there.squares, host.squares, **near)
