"""HSA2C on several machines, or several processes of one: workers under DPSGD, which never wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flockstep import check
from flockstep.backends.real.launch.launch import launch
from flockstep.budget import Budget
from flockstep.rl.hsa2c import HSA2C
from flockstep.rl.nodes.node_workload import ARRIVE, ActorCriticBursts
from flockstep.rl.policies.mlp import MlpPolicy
from flockstep.rl.reporting.history import Row
from flockstep.strategies.dpsgd import DPSGD
from flockstep.trace import Row as Record
from flockstep.trace import Trace

EXCHANGE = DPSGD(max_steps_in_flight=1, server_lr=1.0)
"""Changes are added, and a worker goes on with one burst while its last one travels."""


def learn_on_nodes(
    model: HSA2C,
    total_timesteps: int,
    *,
    nodes: int,
    strategy: DPSGD = EXCHANGE,
    period: int = 25,
    rows: int = 20,
    episodes: int = 20,
    timeout: str | float = 300.0,
    callback: Callable[[Row], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Trace:
    """Train ``model`` in place by ``nodes`` workers, each with the model's own number of lock-free threads.

    A node's step is a burst of ``period`` updates of every thread and costs one message. All nodes together
    take ``total_timesteps``; if one is killed, the others take its part. ``callback`` sees some ``rows`` rows, with
    the mean return of ``episodes`` episodes that are played beside the training; so does the model's history. Losses
    of the trace are minus that. Once ``stop`` says yes, the nodes end early, and the model has what they learned. Under
    torchrun this runs one of the nodes that it started.
    """
    check.whole("learn_on_nodes", "total_timesteps", total_timesteps)
    check.whole("learn_on_nodes", "nodes", nodes)
    check.whole("learn_on_nodes", "rows", rows)
    if not isinstance(model.policy, MlpPolicy):
        raise TypeError(f"learn_on_nodes is for MlpPolicy, got {type(model.policy).__name__}")
    if strategy.threads != 1 or strategy.period != 1:
        raise ValueError("learn_on_nodes has its threads inside a step: DPSGD's threads and period must be 1")
    workload = ActorCriticBursts(
        env=model.source,
        settings=replace(model.settings, period=period),
        policy=model.policy,
        episodes=episodes,
        seed=model.seed,
        since=model.num_timesteps,
        until=model.num_timesteps + total_timesteps,
    )
    steps = -(-total_timesteps // workload.timesteps)
    workers = nodes - (not strategy.server_trains)
    if workers < 1:
        raise ValueError("learn_on_nodes.nodes must be at least 2 where the server does not train")
    history, since = model.start_history(), model.num_timesteps

    def on_row(record: Record) -> None:
        timesteps = since + min(steps, record.step * workers) * workload.timesteps
        row = history.put(timesteps=timesteps, seconds=record.seconds, mean_return=-record.loss)
        if callback is not None:
            callback(row)

    trace = launch(
        strategy,
        workload,
        nodes=nodes,
        steps=Budget(steps=steps),
        optimizer=ARRIVE,
        record_every=max(1, steps // workers // rows),
        timeout=timeout,
        seed=model.seed,
        on_row=on_row,
        stop=stop,
    )
    workload.fill(model.policy, trace.models.get(strategy.server, trace.model))
    # Of one that was killed nobody knows how many it took, but the others took what was left.
    done = steps if stop is None or not stop() else min(steps, sum(report.steps for report in trace.nodes))
    model.num_timesteps = since + done * workload.timesteps
    return trace
