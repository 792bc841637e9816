"""Atari games, as actor-critics are known to play them.

An action is held for 4 frames; what is seen are the last 4 such screens, grey, 84 x 84. A game begins with up to 30
idle frames; a lost life ends an episode for the policy, and it is told the signs of rewards. Scores are of whole games,
in points. envpool emulates where it is installed, else ale-py, which is under the GPL; neither comes with Flockstep.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep import check
from flockstep.rl.environments.copies import Environments, Step, needed
from flockstep.rl.environments.spaces import Actions, Observations

EMULATORS = ("envpool", "ale_py")
_SEEN = Observations((4, 84, 84), dtype="uint8")


def atari(game: str, count: int, *, emulator: str | None = None, threads: int = 1) -> Environments:
    """So many copies of a game such as ``Pong`` or ``ALE/MsPacman-v5``, emulated by so many threads."""
    check.whole("atari", "count", count)
    check.whole("atari", "threads", threads)
    if emulator is None:
        emulator = next((name for name in EMULATORS if find_spec(name)), None)
    if emulator is None:
        raise ModuleNotFoundError("Atari games need an emulator: pip install envpool, or pip install ale-py gymnasium")
    check.one_of("atari", "emulator", emulator, EMULATORS)
    return (EnvpoolAtari if emulator == "envpool" else AleAtari)(game, count, threads=min(threads, count))


def is_game(name: str) -> bool:
    """Whether an id means an Atari game: ``ALE/Pong-v5``, ``PongNoFrameskip-v4``, ``PongDeterministic-v4``, and also
    ``Pong-v4`` or ``Pong``, unless somebody registered something else under that name."""
    if name.startswith("ALE/") or re.search(r"(NoFrameskip|Deterministic)-v\d+$", name):
        return True
    if not re.fullmatch(r"\w+(-v[045])?", name):
        return False
    registered = needed("gymnasium").registry.get(name)
    if registered is not None:
        return str(registered.entry_point).startswith("ale_py")
    if find_spec("ale_py"):
        return rom(name) in needed("ale_py.roms").get_all_rom_ids()
    return bool(find_spec("envpool")) and f"{title(name)}-v5" in needed("envpool").list_all_envs()


def title(game: str) -> str:
    """``MsPacman`` for ``ALE/MsPacman-v5``, ``MsPacmanNoFrameskip-v4`` or ``ms_pacman``."""
    name = re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", game.removeprefix("ALE/"))
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def rom(game: str) -> str:
    """``ms_pacman``, as ale-py has it."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title(game)).lower()


def _check_known(game: str, name: str, known: Collection[str]) -> None:
    """Not all hundred names: the nearest, if any is near."""
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f", is it {near[0]}?" if near else ""
        raise ValueError(f"atari.game must be one that the emulator has, got {game!r}{hint}")


class Games:
    """Scores and lengths of whole games, whatever a policy is told of them."""

    def __init__(self, count: int) -> None:
        self._points, self._lengths = np.zeros(count), np.zeros(count, np.int64)
        self._ended: list[tuple[float, int]] = []

    def add(self, points: NDArray[Any], over: NDArray[Any], counts: NDArray[Any]) -> None:
        """One step of every game."""
        self._points += points * counts
        self._lengths += counts
        for i in np.flatnonzero(over):
            self._ended.append((float(self._points[i]), int(self._lengths[i])))
            self._points[i] = self._lengths[i] = 0

    def ended(self) -> list[tuple[float, int]]:
        """Score and length of the games that ended since this was last asked."""
        ended, self._ended = self._ended, []
        return ended


class AleAtari:
    """The emulators of ale-py, with its own reduction of screens."""

    observations = _SEEN

    def __init__(self, game: str, count: int, *, threads: int = 1) -> None:
        needed("gymnasium")
        self.count = count
        name = rom(game)
        _check_known(game, name, needed("ale_py.roms").get_all_rom_ids())
        make = needed("ale_py.vector_env").AtariVectorEnv
        # Signals lost lives and plays on; games that are over are begun anew below.
        self._pool = make(name, count, num_threads=threads, life_loss_info=True, reward_clipping=False)
        self.spaces = self._pool.single_observation_space, self._pool.single_action_space
        self.actions = Actions.of(self.spaces[1])
        self._games = Games(count)

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Begin new games."""
        self._games = Games(self.count)
        observations: NDArray[Any] = self._pool.reset(seed=seed)[0]
        return observations

    def step(self, drawn: NDArray[Any]) -> Step:
        """Step every game; those that are over begin anew at once."""
        finals, points, terminated, truncated, info = self._pool.step(self.actions.decode(drawn))
        counts = np.ones(self.count, bool)
        over = (terminated & (info["lives"] == 0)) | truncated
        observations = finals
        if over.any():
            # With all others as they are.
            observations = self._pool.reset(options={"reset_mask": over})[0]
        self._games.add(points, over, counts)
        return Step(observations, np.sign(points).astype(np.float64), terminated, truncated, finals, counts)

    def ended(self) -> list[tuple[float, int]]:
        """Score and length of the games that ended since this was last asked."""
        return self._games.ended()

    def close(self) -> None:
        """Let the emulators go."""
        self._pool.close()


class EnvpoolAtari:
    """The emulators of envpool, which begin anew in the step after an end."""

    observations = _SEEN

    def __init__(self, game: str, count: int, *, threads: int = 1) -> None:
        self.count, self._threads, self._name = count, threads, f"{title(game)}-v5"
        envpool = needed("envpool")
        _check_known(game, self._name, envpool.list_all_envs())
        info = envpool.make_spec(self._name)
        self.spaces = info.gymnasium_observation_space, info.gymnasium_action_space
        self.actions = Actions.of(self.spaces[1])
        self._make = envpool.make_gymnasium
        self._pool: Any = None
        self._begins, self._games = np.zeros(count, bool), Games(count)

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Begin new games. A pool has its seed for life, so with one it is made anew."""
        if seed is not None or self._pool is None:
            self.close()
            self._pool = self._made(0 if seed is None else seed)
        self._begins, self._games = np.zeros(self.count, bool), Games(self.count)
        observations: NDArray[Any] = self._pool.reset()[0]
        return observations

    def step(self, drawn: NDArray[Any]) -> Step:
        """Step every game; where an episode had ended, the action counts for nothing."""
        if self._pool is None:
            raise RuntimeError("these games have not begun: reset comes first")
        seen, signs, terminated, truncated, info = self._pool.step(self.actions.decode(drawn))
        counts = ~self._begins
        self._begins = terminated | truncated
        self._games.add(info["reward"], (info["terminated"] != 0) | truncated, counts)
        return Step(seen, signs.astype(np.float64), terminated, truncated, seen, counts)

    def ended(self) -> list[tuple[float, int]]:
        """Score and length of the games that ended since this was last asked."""
        return self._games.ended()

    def close(self) -> None:
        """Let the emulators go."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _made(self, seed: int) -> Any:
        return self._make(
            self._name, num_envs=self.count, num_threads=self._threads, episodic_life=True, reward_clip=True, seed=seed
        )
