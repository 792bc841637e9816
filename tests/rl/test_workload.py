"""An actor-critic under strategies: on virtual nodes, on threads, on processes."""

import copy
import os
import pickle
import signal
from functools import partial

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.rl import HSA2C, Linear, RMSpropTF, Settings
from flockstep.rl.nodes.learn_nodes import learn_on_nodes
from flockstep.rl.nodes.node_workload import ARRIVE, ActorCriticBursts
from flockstep.rl.nodes.workload import ActorCritic

# They compile fifty functions: half a minute of a core, before any test has begun.
pytestmark = pytest.mark.slow

gymnasium = pytest.importorskip("gymnasium", reason="needs gymnasium")

SMALL = Settings(envs_per_thread=2, period=3)
RMSPROP = partial(RMSpropTF, lr=7e-4)


def cartpole():
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", cartpole])
def test_the_contract_of_a_workload(env):
    workload = ActorCritic(env=env, settings=SMALL, episodes=2)
    x = workload.start()
    assert torch.equal(x, workload.start())
    before = x.clone()
    first = workload.shard(0, 2).gradient(x, np.random.default_rng(0))
    again = workload.shard(1, 2).gradient(x, np.random.default_rng(0))
    assert torch.equal(first, again)
    assert torch.equal(x, before)
    assert 0 < first.norm() <= 0.5 + 1e-5
    assert workload.loss(x) == workload.loss(x)
    assert workload.loss(x) == -np.mean(workload.returns(x))
    assert isinstance(pickle.loads(pickle.dumps(copy.deepcopy(workload))), ActorCritic)


def test_a_shards_episodes_go_on_from_one_gradient_to_the_next():
    workload, rng = ActorCritic(env="CartPole-v1", settings=SMALL).shard(0, 1), np.random.default_rng(0)
    x = workload.start()
    first = workload.gradient(x, rng)
    assert not torch.equal(first, workload.gradient(x, rng))
    assert workload._worker._ages.max() > SMALL.n_steps


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_burst_is_what_the_engine_does(threads):
    settings = Settings(envs_per_thread=2, period=3, threads=threads)
    workload = ActorCriticBursts(env="CartPole-v1", settings=settings)
    x = workload.start()
    shard = workload.shard(0, 1)
    shard.progress = 0.25
    change = shard.gradient(x, np.random.default_rng(4))
    assert workload.timesteps == 30 * threads
    assert 0 < change.abs().max() < 1
    if threads == 1:
        # The same by steps of RMSpropTF on single roll-outs, with the learning rate after a quarter of the training.
        single, rng = ActorCritic(env="CartPole-v1", settings=settings).shard(0, 1), np.random.default_rng(4)
        y = x.clone().requires_grad_()
        optimizer = RMSpropTF([y])
        optimizer.param_groups[0]["lr"] = 7e-4 * 0.75
        for _ in range(3):
            y.grad = single.gradient(y.detach(), rng)
            optimizer.step()
        torch.testing.assert_close(x - change, y.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("strategy", [fs.DPSGD(period=2), fs.DPSGD(threads=2, period=2), fs.DataParallel()])
def test_strategies_on_virtual_nodes(strategy, nodes):
    workload = ActorCritic(env="CartPole-v1", settings=SMALL, episodes=3)
    traces = [
        fs.simulate(
            strategy,
            workload,
            nodes=nodes,
            steps=16,
            optimizer=RMSPROP,
            compute=fs.Compute(step="1 ms", spread=0.2),
            record_every=8,
        )
        for _ in range(2)
    ]
    assert not torch.equal(traces[0].model, workload.start())
    assert torch.equal(traces[0].model, traces[1].model)


def test_one_virtual_node_is_one_worker():
    """DPSGD of one node and one thread is the plain loop over roll-outs."""
    workload = ActorCritic(env="CartPole-v1", settings=SMALL, episodes=2)
    trace = fs.simulate(fs.DPSGD(), workload, nodes=1, steps=10, optimizer=RMSPROP, seed=5)
    from flockstep.node import stream

    shard, rng, x = workload.shard(0, 1), stream(5, 0, "data"), workload.start().requires_grad_()
    optimizer = RMSPROP([x])
    for _ in range(10):
        x.grad = shard.gradient(x.detach(), rng)
        optimizer.step()
    torch.testing.assert_close(trace.model, x.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_of_this_process_as_nodes_with_a_crew(threads):
    workload = ActorCritic(env="CartPole-v1", settings=SMALL, episodes=2)
    trace = fs.launch(fs.DPSGD(threads=threads, period=2), workload, nodes=1, steps=16, optimizer=RMSPROP, on="threads")
    assert torch.isfinite(trace.model).all()
    assert not torch.equal(trace.model, workload.start())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": 0}, "ActorCriticBursts.episodes must be at least 1"),
        ({"policy": torch.nn.Linear(4, 2)}, "ActorCriticBursts.policy must be an MlpPolicy"),
        ({"settings": {}}, "settings must be Settings"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ActorCriticBursts(**({"env": "CartPole-v1"} | arguments))


def test_refusals_of_nodes():
    model = HSA2C("MlpPolicy", "CartPole-v1", seed=0)
    with pytest.raises(ValueError, match="threads and period must be 1"):
        learn_on_nodes(model, 1000, nodes=2, strategy=fs.DPSGD(threads=2))
    with pytest.raises(ValueError, match="at least 2 where the server does not train"):
        learn_on_nodes(model, 1000, nodes=1, strategy=fs.DPSGD(server_trains=False))
    with pytest.raises(ValueError, match=r"learn_on_nodes.nodes must be at least 1"):
        learn_on_nodes(model, 1000, nodes=0)


@pytest.mark.thorough
def test_learning_on_two_processes(tmp_path):
    model = HSA2C("MlpPolicy", "CartPole-v1", seed=0)
    before, seen = model.evaluate(10, seed=0), []
    trace = learn_on_nodes(model, 200_000, nodes=2, callback=seen.append)
    assert model.num_timesteps == 200_000
    assert seen == model.history
    assert seen[-1].mean_return == -trace.loss
    assert sum(node.gradients for node in trace.nodes) >= 200
    assert model.evaluate(10, seed=0).mean > 2 * before.mean
    assert HSA2C.load(model.save(tmp_path / "m")).evaluate(10, seed=0) == model.evaluate(10, seed=0)


class Mortal(ActorCriticBursts):
    """Node 1 dies without a word in its fifth burst."""

    rank = bursts = 0

    def shard(self, rank, size):
        twin = super().shard(rank, size)
        twin.rank, twin.bursts = rank, 0
        return twin

    def gradient(self, x, rng):
        self.bursts += 1
        if self.rank == 1 and self.bursts == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().gradient(x, rng)


@pytest.mark.slow
def test_a_killed_worker_costs_its_rollout_only():
    workload = Mortal(env="CartPole-v1", settings=Settings(period=25))
    trace = fs.launch(
        fs.DPSGD(max_steps_in_flight=1, server_lr=1.0),
        workload,
        nodes=2,
        steps=fs.Budget(steps=150),
        optimizer=ARRIVE,
        record_every=10,
    )
    # The other takes what is left of the work; what had been pushed of the dead one's is in the model.
    assert trace.nodes[0].gradients >= 145
    assert workload.loss(trace.models[0]) < 2 * workload.loss(workload.start())


def test_a_burst_knows_where_the_whole_training_stands(monkeypatch):
    settings = Settings(envs_per_thread=2, period=3, learning_rate=Linear(1e-3, 0.0, steps=4000))
    shard = ActorCriticBursts(env="CartPole-v1", settings=settings, since=1000, until=3000).shard(0, 1)
    shard.progress = 0.5
    shard.gradient(shard.start(), np.random.default_rng(0))
    given = []
    monkeypatch.setattr(type(shard._workers[0]), "train", lambda self, theta, squares, rates: given.extend(rates))
    shard.gradient(shard.start(), np.random.default_rng(0))
    assert given == pytest.approx([1e-3 * (1 - 2000 / 4000)] * 3)
