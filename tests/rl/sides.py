"""A game of pictures that is learned in seconds, and a network that sees enough."""

import numpy as np
from torch import nn


class Sides:
    """Pictures that are bright on one side: naming it gives 1. Made as a user would make a gymnasium environment."""

    def __init__(self, episode=10, fails_after=None):
        from gymnasium.spaces import Box, Discrete

        self.observation_space = Box(0, 255, (12, 12, 1), np.uint8)
        self.action_space = Discrete(2)
        self._episode, self._fails_after, self._taken = episode, fails_after, 0
        self._rng = np.random.default_rng()

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._at = 0
        return self._picture(), {}

    def step(self, action):
        self._at += 1
        self._taken += 1
        if self._taken == self._fails_after:
            raise ValueError("the pixels are gone")
        reward = float(int(action) == self._side)
        return self._picture(), reward, False, self._at == self._episode, {}

    def close(self):
        pass

    def _picture(self):
        self._side = int(self._rng.integers(2))
        picture = self._rng.integers(0, 60, (12, 12, 1), np.uint8)
        picture[:, 6 * self._side : 6 * self._side + 6] += 120
        return picture


class Glance(nn.Module):
    """A small network of one's own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(100, 16), nn.Tanh())
        self.actor, self.critic = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, frames):
        x = self.body(frames.permute(0, 3, 1, 2).float() / 255)
        return self.actor(x), self.critic(x)[:, 0]


def vector(policy):
    return nn.utils.parameters_to_vector(policy.parameters()).detach().clone()


def until_it_knows_sides(engine):
    """Train until a hundred episodes go well; the scores of all, and the steps reached."""
    scores = []

    def tell(tally):
        scores.extend(tally.returns)
        return len(scores) < 200 or np.mean(scores[-100:]) < 9.5

    return scores, engine.train(since=0, until=100_000, tell=tell)


class Mine(nn.Module):
    """The smallest policy of one's own, for CartPole."""

    def __init__(self):
        super().__init__()
        self.choose, self.judge = nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, seen):
        return self.choose(seen), self.judge(seen).squeeze(-1)
