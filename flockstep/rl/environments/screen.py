"""One Atari game with its screen, as people see it; what a policy is shown of it is what training shows.

The emulators that train (environments/atari.py) show small grey screens only. This one steps ale-py's emulator itself,
and reduces its screen in the same way: the brighter of the last two frames, the mean over the area of each of 84 x 84
points.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.rl.environments.atari import rom
from flockstep.rl.environments.copies import needed

_HELD, _STACKED, _SIDE, _IDLE = 4, 4, 84, 30


class Screen:
    """As gymnasium has an environment, as far as playing a game needs it."""

    def __init__(self, game: str, *, idle: int = _IDLE) -> None:
        ale_py = needed("ale_py")
        self._ale = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._rom, self._fire, self._idle = needed("ale_py.roms").get_rom_path(rom(game)), ale_py.Action.FIRE, idle
        self._ale.loadROM(self._rom)
        self._actions = self._ale.getMinimalActionSet()
        height, width = self._ale.getScreenDims()
        self._rows, self._columns = _areas(height, _SIDE), _areas(width, _SIDE).T
        self._seen: deque[NDArray[Any]] = deque(maxlen=_STACKED)

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin a game, with up to 30 idle frames."""
        rng = np.random.default_rng(seed)
        self._ale.setInt("random_seed", int(rng.integers(2**31)))
        self._ale.loadROM(self._rom)
        self._ale.reset_game()
        for _ in range(int(rng.integers(self._idle + 1))):
            self._ale.act(0)
        if self._fire in self._actions:
            # Many games wait for it.
            self._ale.act(self._fire)
        self._seen.extend([np.zeros((_SIDE, _SIDE), np.uint8)] * (_STACKED - 1))
        return self._look([self._ale.getScreenGrayscale()]), {}

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Hold an action for four frames."""
        points, frames = 0.0, []
        for _ in range(_HELD):
            points += self._ale.act(self._actions[int(action)])
            frames.append(self._ale.getScreenGrayscale())
            if self._ale.game_over():
                break
        return self._look(frames[-2:]), points, bool(self._ale.game_over()), bool(self._ale.game_truncated()), {}

    def render(self) -> NDArray[Any]:
        """The screen in colours."""
        screen: NDArray[Any] = self._ale.getScreenRGB()
        return screen

    def close(self) -> None:
        """Nothing is left open."""

    def _look(self, frames: list[NDArray[Any]]) -> NDArray[Any]:
        brightest = np.maximum.reduce(frames).astype(np.float64)
        self._seen.append(np.rint(self._rows @ brightest @ self._columns).astype(np.uint8))
        return np.stack(self._seen)


def _areas(before: int, after: int) -> NDArray[Any]:
    """(after, before): of how much of each old point a new one is the mean."""
    edges = np.linspace(0, before, after + 1)
    points = np.arange(before)
    shared = np.minimum(points + 1, edges[1:, None]) - np.maximum(points, edges[:-1, None])
    weights: NDArray[Any] = np.clip(shared, 0, None) * after / before
    return weights
