"""A game of several choices at once, which is learned in seconds."""

import gymnasium
import numpy as np


class Patterns(gymnasium.Env):
    """A pattern is shown, and every part of an action that matches it gives 1."""

    def __init__(self, space, episode=8):
        self.action_space, self._episode = space, episode
        binary = isinstance(space, gymnasium.spaces.MultiBinary)
        self._low = np.zeros(space.shape, int) if binary else space.start
        self._counts = np.full(space.shape, 2) if binary else space.nvec
        self.observation_space = gymnasium.spaces.Box(0, 1, (int(self._counts.sum()),), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._age = 0
        return self._shown(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._age += 1
        reward = float((action == self._wanted).sum())
        return self._shown(), reward, False, self._age == self._episode, {}

    def _shown(self):
        chosen = self.np_random.integers(0, self._counts)
        self._wanted = chosen + self._low
        rows = [np.eye(n)[c] for n, c in zip(self._counts.ravel(), chosen.ravel(), strict=True)]
        return np.concatenate(rows).astype(np.float32)
