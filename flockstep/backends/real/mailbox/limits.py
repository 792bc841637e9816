"""One number, ``timeout``, and every deadline that follows from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Seconds, all of them shares of the one a user sets."""

    timeout: float
    """How long any question may take, from the call to the whole reply."""

    @property
    def reply(self) -> float:
        """For a question and its reply; a little less than all, so that who asks hears of a loss within the timeout."""
        return 0.95 * self.timeout

    @property
    def connect(self) -> float:
        """To reach another machine, and to agree on keys with it."""
        return self.timeout / 3

    @property
    def knock(self) -> float:
        """For a sign of life, once asked for."""
        return self.timeout / 3

    @property
    def beat(self) -> float:
        """Between two signs of life that a node asks others for."""
        return self.timeout / 6

    @property
    def early(self) -> float:
        """For a topic that nobody answers yet; less than all, so that the asker is still there to be told."""
        return 0.8 * self.timeout

    @property
    def back(self) -> float:
        """For those who were lost to come back to the door, when nobody trains any more."""
        return self.timeout / 3

    @property
    def idle(self) -> float:
        """After which a caller no longer uses a silent connection."""
        return 2 * self.timeout

    @property
    def silence(self) -> float:
        """After which a listener closes a silent connection: later than any caller would use it."""
        return 4 * self.timeout

    def by_name(self) -> dict[str, float]:
        """All of them, for people."""
        return {
            "a question and its reply": self.reply,
            "connecting, shaking hands": self.connect,
            "a sign of life": self.knock,
            "between signs of life": self.beat,
            "a topic without a handler yet": self.early,
            "all nodes lost: for them to come back": self.back,
            "idle connection used again": self.idle,
            "silent connection closed": self.silence,
        }
