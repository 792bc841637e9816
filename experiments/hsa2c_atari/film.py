"""A film of a policy that was kept: python -m experiments.hsa2c_atari.film POLICY.safetensors GAME.gif"""

from __future__ import annotations

import argparse
from pathlib import Path

from flockstep.rl.hsa2c import HSA2C
from flockstep.rl.reporting.film import gif


def main() -> None:
    """Play the beginning of a game, with actions drawn as in training."""
    parser = argparse.ArgumentParser(prog="python -m experiments.hsa2c_atari.film", description=__doc__)
    parser.add_argument("policy", type=Path, help="what the experiment kept in flockstep-out")
    parser.add_argument("film", type=Path, help="the GIF to write")
    parser.add_argument("--seed", type=int, default=0, help="of the game (default: 0)")
    asked = parser.parse_args()
    model = HSA2C.load(asked.policy, device="cpu", threads=1, seed=asked.seed)
    print(gif(model, asked.film, seed=asked.seed, deterministic=False))
    model.close()


if __name__ == "__main__":
    main()
