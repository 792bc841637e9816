"""HSA2C learns an Atari game from the screen: torch workers that share one policy without a lock.

On a CPU a worker is a process with its games; on a GPU (--device cuda) workers take turns on it, and their games share
the cores. The rate goes by the steps of all legs together, so that a training may be cut into legs: rows are kept every
five seconds, the policy every half minute, Ctrl-C or SIGTERM ends a leg in order, and with --resume the same command
goes on with what was kept, for minutes of its own. Needs envpool, or ale-py and gymnasium.
"""

from __future__ import annotations

import argparse
import math
import signal
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from experiments.hsa2c_atari.clock import Clock
from experiments.hsa2c_atari.curve import Curve, draw, read
from flockstep.rl.environments.atari import title
from flockstep.rl.hsa2c import HSA2C
from flockstep.rl.rates import Linear
from flockstep.rl.reporting.history import Row

NAME = "experiments.hsa2c_atari"
HERE = Path(__file__).parent
FOREVER = 10**12
GOALS = {"Pong": (18.0, "the goal"), "Breakout": (349.5, "published for stable-baselines3's A2C")}
"""What a mean score is held against."""
_SAVE_EVERY = 30.0


def options() -> argparse.Namespace:
    """What can be asked for."""
    parser = report.arguments(NAME, __doc__ or "")
    parser.add_argument("--game", default="Pong", help="Pong, Breakout, MsPacman ... (default: Pong)")
    parser.add_argument("--minutes", type=float, default=20.0, help="of this leg (default: 20)")
    parser.add_argument("--until", type=int, default=FOREVER, help="steps of all legs together, at most (default: any)")
    parser.add_argument("--workers", type=int, default=2, help="on a CPU one for each core (default: 2)")
    parser.add_argument("--envs", type=int, default=8, help="games of each worker (default: 8)")
    parser.add_argument("--n-steps", type=int, default=5, help="steps of a roll-out (default: 5)")
    parser.add_argument("--rate", type=float, default=7e-4, help="learning rate at the start (default: 7e-4)")
    parser.add_argument("--last-rate", type=float, default=5e-4, help="and after --over steps (default: 5e-4)")
    parser.add_argument("--over", type=int, default=10_000_000, help="steps of all legs together (default: 10 million)")
    parser.add_argument("--entropy", type=float, default=0.01, help="weight of the entropy (default: 0.01)")
    parser.add_argument("--value", type=float, default=0.5, help="weight of the value's loss (default: 0.5)")
    parser.add_argument("--policy", default="A3CPolicy", choices=("A3CPolicy", "CnnPolicy"), help="the network")
    parser.add_argument("--device", default="cpu", help="a torch device for the networks (default: cpu)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, games and actions (default: 0)")
    parser.add_argument("--games", type=int, default=5, help="games that the policy plays in the end (default: 5)")
    parser.add_argument("--resume", action="store_true", help="go on with the policy and the rows of the last leg")
    return parser.parse_args()


def model_of(asked: argparse.Namespace, kept: Path) -> HSA2C:
    """A new one, or the one that was kept."""
    numbers: dict[str, Any] = {
        "threads": asked.workers,
        "envs_per_thread": asked.envs,
        "n_steps": asked.n_steps,
        "ent_coef": asked.entropy,
        "vf_coef": asked.value,
    }
    if asked.resume:
        # Its learning rate goes on where it was.
        return HSA2C.load(kept, device=asked.device, **numbers)
    rate = Linear(asked.rate, asked.last_rate, asked.over)
    game = f"ALE/{title(asked.game)}-v5"
    return HSA2C(asked.policy, game, seed=asked.seed, learning_rate=rate, device=asked.device, **numbers)


def train(model: HSA2C, until: int, clock: Clock, curve: Curve, kept: Path | None) -> str:
    """Until the steps are taken, the time is over or Ctrl-C; how it ended."""
    saved = time.monotonic()

    def on_row(row: Row) -> bool:
        nonlocal saved
        told = curve.add(row)
        if told is not None:
            print("  ".join(f"{name} {value}" for name, value in told.items()), flush=True)
        if kept is not None and time.monotonic() - saved > _SAVE_EVERY:
            model.save(kept)
            saved = time.monotonic()
        return clock.spent() < 1

    try:
        model.learn(until - model.num_timesteps, on_row, reset_num_timesteps=False)
        ended = "the steps are taken" if model.num_timesteps >= until else "the time was over"
    except KeyboardInterrupt:
        ended = "interrupted"
    if kept is not None:
        model.save(kept)
    return ended


def main() -> None:
    """Train, draw, play."""
    asked = options()
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Also in the background of a script, and when a time limit strikes.
        signal.signal(number, signal.default_int_handler)
    minutes = 0.05 if asked.quick else asked.minutes
    folder: Path | None = asked.out or (None if asked.quick else HERE)
    game = title(asked.game)
    run = f"{game}_{asked.workers}x{asked.envs}_{torch.device(asked.device).type}_{asked.seed}"
    kept = None if folder is None else folder / "flockstep-out" / f"{run}.safetensors"
    if asked.resume and (folder is None or kept is None or not kept.exists()):
        raise SystemExit(f"there is nothing to go on with: {kept} is not there")
    before = read(folder / f"{run}.csv") if asked.resume and folder is not None else []
    clock = Clock(time.monotonic(), 60 * minutes)
    model = model_of(asked, kept or Path())
    curve = Curve(run, folder, before)
    ended = train(model, asked.until, clock, curve, kept)
    games = min(1, asked.games) if asked.quick else asked.games
    print(f"{ended}; playing {games} games", flush=True)
    played = model.evaluate(games, deterministic=False, seed=asked.seed + 1) if games else None
    last = model.history[-1]
    model.close()
    if folder is not None:
        draw(folder, game)
    report.finish(
        NAME,
        curve.rows[:: max(1, len(curve.rows) // 20)],
        figures={
            "game": game,
            "minutes": round(last.seconds / 60, 2),
            "steps": last.timesteps,
            "steps/s": round(last.steps_per_second),
            "games": last.episodes,
            "mean score": None if math.isnan(last.mean_return) else round(last.mean_return, 2),
            "score in the end": None if played is None else str(played),
        },
        met=judged(game, last, quick=asked.quick),
        folder=None,
    )


def judged(game: str, last: Row, *, quick: bool) -> dict[str, bool]:
    """Whether the last games were as good as they should be."""
    if game not in GOALS:
        return {}
    goal, whose = GOALS[game]
    if quick:
        return {f"a quick run cannot judge: mean score of 100 games, {goal:g} is {whose}": False}
    games = min(100, last.episodes)
    bar = f"mean score {last.mean_return:.2f} in the last {games} games, {goal:g} is {whose}"
    return {bar: games == 100 and last.mean_return >= goal}


if __name__ == "__main__":
    main()
