"""Words on their way to one peer: in order, and without making anybody wait. What does not arrive is said again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from flockstep.backends.real.mailbox.mailbox import Mailbox
from flockstep.backends.real.rounds.council.words import Word
from flockstep.errors import LostPeer
from flockstep.message import Message

# More than are ever under way between two that hear each other; of what piles up, the newest counts.
_MOST_WAITING = 64


class Outbox:
    """One peer's; a thread that carries words there, one after another."""

    def __init__(self, box: Mailbox, peer: int, patience: float, refused: Callable[[int], None]) -> None:
        self._box, self._peer, self._patience, self._refused = box, peer, patience, refused
        self._words: deque[Word] = deque(maxlen=_MOST_WAITING)
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"words to node {peer}", daemon=True)
        self._thread.start()

    def say(self, word: Word) -> None:
        """Send a word, soon; what says the same as one that waits is said once."""
        with self._changed:
            if word not in self._words:
                self._words.append(word)
                self._changed.notify()

    def close(self) -> None:
        """Nothing more is sent. Call it when the mailbox is closed, which ends a word that is under way."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._words or self._closed)
                if self._closed:
                    return
                word = self._words.popleft()
            try:
                # Not longer: a connection whose other side is gone without a word must make room for a new one.
                self._box.tell(self._peer, Message.of_bytes(word.to_json(), "word"), self._patience)
            except LostPeer as lost:
                if isinstance(lost.__cause__, ConnectionRefusedError):
                    self._refused(self._peer)
                with self._changed:
                    # What has piled up meanwhile is out of date, but for the newest.
                    while len(self._words) > 1:
                        self._words.popleft()
