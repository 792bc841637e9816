"""Now and then: at the first row at or after every multiple of so many environment steps."""

from __future__ import annotations


class Every:
    """Rows come in bursts of steps: where one passes several multiples at once, that counts once."""

    def __init__(self, steps: int, since: int = 0) -> None:
        self._steps = steps
        self._next = self._after(since)

    def due(self, timesteps: int) -> bool:
        """Whether it is time; if so, the next time is later."""
        if timesteps < self._next:
            return False
        self._next = self._after(timesteps)
        return True

    def _after(self, timesteps: int) -> int:
        return (timesteps // self._steps + 1) * self._steps
