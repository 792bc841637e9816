"""An episode as a moving picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.rl.environments.copies import needed, single
from flockstep.rl.environments.screen import Screen
from flockstep.rl.hsa2c import HSA2C

_WIDEST, _MOST = 320, 300
"""Pixels across, and frames: a GIF of more is too large to send to anybody."""


def gif(model: HSA2C, path: str | Path, *, seed: int | None = None, deterministic: bool = True) -> Path:
    """Play one episode and write it as a GIF; long ones are cut after 300 frames."""
    frames = list(_frames(model, seed, deterministic))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    image = needed("PIL.Image")
    pictures = [image.fromarray(frame).convert("P", palette=image.Palette.ADAPTIVE) for frame in frames]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=40, loop=0)
    return path


def _frames(model: HSA2C, seed: int | None, deterministic: bool) -> Iterator[NDArray[Any]]:
    env = _shown(model)
    try:
        seen, _ = env.reset(seed=seed)
        for _ in range(_MOST):
            yield _small(_picture_of(env))
            action, _ = model.predict(seen, deterministic=deterministic)
            seen, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                yield _small(_picture_of(env))
                return
    finally:
        env.close()


def _shown(model: HSA2C) -> Any:
    if callable(model.source):
        return single(model.source)
    return Screen(model.source) if model.plays_atari else single(model.source, render_mode="rgb_array")


def _picture_of(env: Any) -> NDArray[Any]:
    gymnasium = needed("gymnasium")
    try:
        frame = env.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(str(error)) from error
    if not isinstance(frame, np.ndarray):
        raise ValueError(  # noqa: TRY004
            "this environment gives no pictures: let the function that makes it set render_mode='rgb_array'"
        )
    return frame


def _small(frame: NDArray[Any]) -> NDArray[Any]:
    stride = -(-frame.shape[1] // _WIDEST)
    return np.ascontiguousarray(frame[::stride, ::stride])
