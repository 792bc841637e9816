"""HSA2C learns Pong for some minutes: torch processes that share one policy without a lock.

The network is A3C's unless told otherwise; the learning rate falls to 0 over the minutes. Rows are kept every five
seconds, the policy every half minute, and Ctrl-C or SIGTERM ends a run in order; with --resume the same command goes on
with what was kept, for minutes of its own. Needs envpool, or ale-py and gymnasium.
"""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from experiments.hsa2c_pong.clock import Clock
from experiments.hsa2c_pong.curve import Curve, draw, read
from flockstep.rl.history import Row
from flockstep.rl.hsa2c import HSA2C
from flockstep.rl.rates import Linear

NAME = "experiments.hsa2c_pong"
HERE = Path(__file__).parent
GAME = "ALE/Pong-v5"
FOREVER = 10**12
RANDOM = -20.0
"""Nobody who plays at random does better over a hundred games."""
_SAVE_EVERY = 30.0


def options() -> argparse.Namespace:
    """What can be asked for."""
    parser = report.arguments(NAME, __doc__ or "")
    parser.add_argument("--minutes", type=float, default=20.0, help="of training (default: 20)")
    parser.add_argument("--processes", type=int, default=2, help="one for each core (default: 2)")
    parser.add_argument("--envs", type=int, default=8, help="games of each process (default: 8)")
    parser.add_argument("--n-steps", type=int, default=5, help="steps of a roll-out (default: 5)")
    parser.add_argument("--rate", type=float, default=7e-4, help="learning rate at the start (default: 7e-4)")
    parser.add_argument("--last-rate", type=float, default=5e-4, help="and after --over steps (default: 5e-4)")
    parser.add_argument("--over", type=int, default=10_000_000, help="steps of all legs together (default: 10 million)")
    parser.add_argument("--entropy", type=float, default=0.01, help="weight of the entropy (default: 0.01)")
    parser.add_argument("--policy", default="A3CPolicy", choices=("A3CPolicy", "CnnPolicy"), help="the network")
    parser.add_argument("--device", default="cpu", help="a torch device for the networks (default: cpu)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, games and actions (default: 0)")
    parser.add_argument("--games", type=int, default=5, help="games that the policy plays in the end (default: 5)")
    parser.add_argument("--resume", action="store_true", help="go on with the policy and the rows of the last run")
    return parser.parse_args()


def model_of(asked: argparse.Namespace, kept: Path) -> HSA2C:
    """A new one, or the one that was kept."""
    numbers: dict[str, Any] = {
        "threads": asked.processes,
        "envs_per_thread": asked.envs,
        "n_steps": asked.n_steps,
        "ent_coef": asked.entropy,
    }
    if asked.resume:
        # Its learning rate goes on where it was.
        model = HSA2C.load(kept, device=asked.device, **numbers)
    else:
        rate = Linear(asked.rate, asked.last_rate, asked.over)
        model = HSA2C(asked.policy, GAME, seed=asked.seed, learning_rate=rate, device=asked.device, **numbers)
    return model


def train(model: HSA2C, clock: Clock, curve: Curve, kept: Path | None) -> str:
    """Until the time is over or Ctrl-C; how it ended."""
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
        model.learn(FOREVER, on_row, reset_num_timesteps=False)
        ended = "the time was over"
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
    minutes = 0.15 if asked.quick else asked.minutes
    folder: Path | None = asked.out or (None if asked.quick else HERE)
    name = f"{NAME}_{asked.processes}"
    kept = None if folder is None else folder / "flockstep-out" / f"pong_{asked.processes}.safetensors"
    if asked.resume and (folder is None or kept is None or not kept.exists()):
        raise SystemExit(f"there is nothing to go on with: {kept} is not there")
    before = read(folder / f"{name.rpartition('.')[2]}.csv") if asked.resume and folder is not None else []
    clock = Clock(time.monotonic(), 60 * minutes)
    model = model_of(asked, kept or Path())
    curve = Curve(name, folder, before)
    ended = train(model, clock, curve, kept)
    print(f"{ended}; playing {asked.games} games", flush=True)
    played = model.evaluate(asked.games, deterministic=False, seed=asked.seed + 1) if asked.games else None
    last = model.history[-1]
    model.close()
    if folder is not None:
        draw(folder)
    games = min(100, last.episodes)
    met = {
        f"mean score {last.mean_return:.2f} in the last {games} games, random play {RANDOM:g} at best": bool(
            last.mean_return > RANDOM
        )
    }
    figures = {
        "minutes": round(last.seconds / 60, 2),
        "steps": last.timesteps,
        "steps/s": round(last.steps_per_second),
        "games": last.episodes,
        "mean score": None if last.mean_return != last.mean_return else round(last.mean_return, 2),
        "score in the end": None if played is None else str(played),
    }
    report.finish(NAME, curve.rows[:: max(1, len(curve.rows) // 20)], figures=figures, met=met, folder=None)


if __name__ == "__main__":
    main()
