"""stable-baselines3's A2C learns the same game on the same emulator, for comparison.

With the settings that its users' collection of them has for Atari games: 16 games, roll-outs of 5 steps, RMSprop in
TensorFlow's form at 7e-4, weights 0.25 of the value's loss and 0.01 of the entropy. Games are emulated by all cores in
one batch, faster than it does itself. Rows and legs are as of python -m experiments.hsa2c_atari. Needs
stable-baselines3, ale-py and gymnasium.
"""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from experiments.hsa2c_atari.clock import Clock
from experiments.hsa2c_atari.curve import Curve, draw, read
from flockstep.cores import cores
from flockstep.rl.engine import Tally
from flockstep.rl.environments.atari import atari, title
from flockstep.rl.reporting.history import History

NAME = "experiments.hsa2c_atari.sb3"
HERE = Path(__file__).parent
GAMES = 16


def main() -> None:
    """Train, keep, draw."""
    parser = report.arguments(NAME, __doc__ or "")
    parser.add_argument("--game", default="Pong", help="Pong, Breakout, MsPacman ... (default: Pong)")
    parser.add_argument("--minutes", type=float, default=20.0, help="of this leg (default: 20)")
    parser.add_argument("--device", default="cpu", help="a torch device for the network (default: cpu)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, games and actions (default: 0)")
    parser.add_argument("--resume", action="store_true", help="go on with the policy and the rows of the last leg")
    asked = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    torch.set_num_threads(1 if asked.device != "cpu" else cores())
    folder: Path | None = asked.out or (None if asked.quick else HERE)
    game = title(asked.game)
    run = f"{game}_sb3_{torch.device(asked.device).type}_{asked.seed}"
    kept = None if folder is None else folder / "flockstep-out" / f"{run}.zip"
    before = read(folder / f"{run}.csv") if asked.resume and folder is not None else []
    curve, history = Curve(run, folder, before), History()
    model, games = model_of(game, asked.device, asked.seed, kept if asked.resume else None)
    seconds, ended = (float(before[-1]["seconds"]), int(before[-1]["games"])) if before else (0.0, 0)
    history.episodes = ended
    clock = Clock(time.monotonic(), 60 * (0.15 if asked.quick else asked.minutes))
    train(model, games, clock, curve, history, seconds)
    if kept is not None:
        model.save(kept)
    games.close()
    if folder is not None:
        draw(folder, game)
    last = history.rows[-1]
    report.finish(
        NAME,
        curve.rows[:: max(1, len(curve.rows) // 20)],
        figures={
            "game": game,
            "steps": last.timesteps,
            "steps/s": round(last.steps_per_second),
            "mean score": None if math.isnan(last.mean_return) else round(last.mean_return, 2),
        },
        met={},
        folder=None,
    )


def model_of(game: str, device: str, seed: int, kept: Path | None) -> tuple[Any, Any]:
    """A new one or the one that was kept, and its games."""
    from stable_baselines3 import A2C
    from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

    from experiments.hsa2c_atari.pool import Pool

    games = Pool(atari(f"ALE/{game}-v5", GAMES, emulator="ale_py", threads=cores()), seed)
    if kept is not None:
        return A2C.load(kept, env=games, device=device), games
    return A2C(
        "CnnPolicy",
        games,
        learning_rate=7e-4,
        n_steps=5,
        vf_coef=0.25,
        ent_coef=0.01,
        policy_kwargs={"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5}},
        seed=seed,
        device=device,
    ), games


def train(model: Any, games: Any, clock: Clock, curve: Curve, history: History, since: float) -> None:
    """Until the time is over or Ctrl-C."""
    from stable_baselines3.common.callbacks import BaseCallback

    def tell() -> None:
        points, lengths = [], []
        for score, length in games.ended():
            points.append(score)
            lengths.append(length)
        told = Tally(model.num_timesteps, points, lengths, math.nan, math.nan, math.nan, 7e-4)
        kept = curve.add(history.add(told), since=since)
        if kept is not None:
            print("  ".join(f"{name} {value}" for name, value in kept.items()), flush=True)

    class Watch(BaseCallback):
        """Tells once a roll-out, and ends in time."""

        def _on_step(self) -> bool:
            return clock.spent() < 1

        def _on_rollout_end(self) -> None:
            tell()

    history.begin(model.num_timesteps)
    try:
        model.learn(10**12, Watch(), reset_num_timesteps=False, log_interval=10**12)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    tell()


if __name__ == "__main__":
    main()
