"""Ctrl-C while something worth keeping is made."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from flockstep.cli.support import consoles


class Stop:
    """Ctrl-C asks to stop, and whoever works does when it next looks; a second one stops at once."""

    asked = False

    def __enter__(self) -> Stop:
        main = threading.current_thread() is threading.main_thread()
        self._before = signal.signal(signal.SIGINT, self._ask) if main else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        _say("Ctrl-C: stopping and saving; once more stops at once.")


def _say(sentence: str) -> None:
    """To standard error, past its buffer: whoever was interrupted may just be writing there, and Python forbids two."""
    try:
        file = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        # No file but a string that somebody catches it in.
        consoles.complain(sentence)
        return
    # A terminal's cursor may stand behind a bar, and behind the ^C.
    os.write(file, f"{os.linesep * os.isatty(file)}{sentence}{os.linesep}".encode())
