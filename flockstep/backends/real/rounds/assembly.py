"""A council at work: its clock, its words' ways out and in, and the threads that carry out what it has decided."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from flockstep.backends.real.mailbox.mailbox import Mailbox
from flockstep.backends.real.mailbox.wire import Refused
from flockstep.backends.real.rounds.carrier.carrier import Abandoned, Carrier, Unreached
from flockstep.backends.real.rounds.council.council import BEATS, Council
from flockstep.backends.real.rounds.council.words import Attempt, Key, Knock, View, Word
from flockstep.backends.real.rounds.outbox import Outbox
from flockstep.backends.real.rounds.view_log import ViewLog
from flockstep.backends.real.thread_pool import run_on_thread
from flockstep.elastic import Elastic
from flockstep.message import NOTHING, Message

NOWHERE = View(0, -1, {})
"""The view of one that knocks."""


class Meeting(Future[Any]):
    """A round that this node waits in; its result, and who took part."""

    ranks: tuple[int, ...] = ()


@dataclass(eq=False)
class _Brought:
    """What this node has brought to a round, and the newest attempt to carry it out."""

    thing: Any
    future: Meeting
    attempt: Attempt | None = None
    result: Any = None


class Assembly:
    """One node's."""

    def __init__(self, box: Mailbox, size: int, elastic: Elastic, timeout: float, log: ViewLog, view: View) -> None:
        self._box, self._size, self._elastic, self._log = box, size, elastic, log
        self.patience = elastic.real_patience
        self.turn = threading.RLock()
        """Held while anything is decided."""
        self.news = threading.Condition(self.turn)
        """Notified when this node has been let in, or left out."""
        self.is_left_out = False
        """Whether the others have gone on without this node."""
        self.has_returned: Callable[[], None] = lambda: None
        """Called now and then when this node's program has returned: some may still wait to be let in."""
        self._rank = box.members.me.rank
        self._outboxes: dict[int, Outbox] = {}
        self._brought: dict[Key, _Brought] = {}
        self._carrier = Carrier(self._rank, box, timeout)
        self.council = self._new_council(view)
        self._closing = threading.Event()
        self._clock = threading.Thread(target=self._run, name="council", daemon=True)
        box.hear = self._hear
        self._clock.start()

    def _new_council(self, view: View) -> Council:
        return Council(self._rank, self._box.members.me.incarnation, view, self._elastic, self.patience, self)

    # This node's program ----------------------------------------------------------------------------------------------

    def bring(self, key: Key, thing: Any) -> Meeting:
        """Bring something to a round."""
        meeting = Meeting()
        with self.turn:
            # Whose node was left out learns of it where it waits.
            if not self.is_left_out:
                self._brought[key] = _Brought(thing, meeting)
                self.council.bring(key, time.monotonic())
        return meeting

    def withdraw(self, key: Key) -> bool:
        """Wait in a round no more; False if it is being carried out."""
        with self.turn:
            withdrawn = self.council.withdraw(key)
            if withdrawn:
                del self._brought[key]
            return withdrawn

    def is_before_me(self, key: Key) -> bool:
        """Whether a round began before this node was in."""
        with self.turn:
            return key.round < self.council.view.firsts.get(self._rank, {}).get(key.channel, 0)

    @property
    def now(self) -> float:
        """The time, as the council is told it."""
        return time.monotonic()

    def leave(self) -> None:
        """This node brings nothing more."""
        with self.turn:
            self.council.leave(time.monotonic())

    def begin_again(self) -> None:
        """This node was left out: from now on it is one that comes."""
        with self.turn:
            for key, brought in self._brought.items():
                if brought.attempt is not None:
                    self._carrier.abandon(brought.attempt, key.channel)
            self._brought.clear()
            # To the others it is another life: what they knew of this one is over.
            self._box.members.begin_after(self._box.members.me)
            self.council = self._new_council(NOWHERE)
            self.is_left_out = False

    def found(self, epoch: int) -> None:
        """Begin a run again: a view of this node alone, which lets the others in."""
        with self.turn:
            view = View(epoch, self._rank, {self._rank: self._box.members.me.incarnation})
            self.council = self._new_council(view)
            self._log.changed(view, NOWHERE)

    def close(self) -> None:
        """End its threads; those that carry words end when the mailbox is closed, and are waited for then."""
        self._closing.set()
        self._clock.join()
        self._carrier.close()

    def close_outboxes(self) -> None:
        """Call it when the mailbox is closed."""
        for outbox in self._outboxes.values():
            outbox.close()

    # What the council has done for it ---------------------------------------------------------------------------------

    def say(self, peer: int, word: Word) -> None:
        """Send a word; it may be lost."""
        if peer not in self._outboxes:
            self._outboxes[peer] = Outbox(self._box, peer, self.patience, self._refused)
        self._outboxes[peer].say(word)

    def carry_out(self, key: Key, attempt: Attempt, ranks: tuple[int, ...]) -> None:
        """Take the mean of what these brought, on a thread of its own."""
        brought = self._brought[key]
        if brought.attempt is not None:
            self._log.again()
        brought.attempt = attempt
        run_on_thread(partial(self._carry, key, brought, attempt, ranks))

    def abandon(self, attempt: Attempt) -> None:
        """An attempt will not be committed."""
        for key, brought in self._brought.items():
            if brought.attempt == attempt:
                brought.result = None
                self._carrier.abandon(attempt, key.channel)

    def deliver(self, key: Key, attempt: Attempt, ranks: tuple[int, ...]) -> None:
        """The result of this attempt counts."""
        brought = self._brought.pop(key)
        brought.future.ranks = ranks
        settle(brought.future, brought.result)

    def installed(self, view: View, before: View) -> None:
        """There is a new view, and this node is in it."""
        self._log.changed(view, before)
        self.news.notify_all()

    def left_out(self, view: View) -> None:
        """The others go on without this node."""
        self.is_left_out = True
        self.news.notify_all()

    def _carry(self, key: Key, brought: _Brought, attempt: Attempt, ranks: tuple[int, ...]) -> None:
        try:
            if isinstance(brought.thing, Tensor):
                result: Any = self._carrier.mean(key, attempt, ranks, brought.thing)
            else:
                received = self._carrier.exchange(key, attempt, ranks, brought.thing)
                result = [received.get(rank, NOTHING) for rank in range(len(brought.thing))]
        except Abandoned:
            return
        except Unreached:
            with self.turn:
                self.council.failed(key, attempt, time.monotonic())
            return
        except Exception as error:
            settle(brought.future, error=error)
            return
        with self.turn:
            if brought.attempt == attempt:
                brought.result = result
                self.council.finished(key, attempt, time.monotonic())

    # Words ------------------------------------------------------------------------------------------------------------

    def _hear(self, peer: int, life: int, message: Message) -> None:
        try:
            word = Word.read(message.to_bytes())
        except ValueError as error:
            raise Refused(str(error)) from None
        with self.turn:
            self.council.hear(peer, life, word, time.monotonic())

    def _refused(self, peer: int) -> None:
        with self.turn:
            self.council.gone(peer)
            self.council.tick(time.monotonic())

    def _run(self) -> None:
        """Tell the council the time, and knock as long as this node is not in."""
        while not self._closing.wait(self.patience / (2 * BEATS)):
            with self.turn:
                if self.council.empty:
                    self._knock()
                self.council.tick(time.monotonic())
                has_left = self.council.has_left
            if has_left:
                self.has_returned()

    def _knock(self) -> None:
        members = self._box.members
        # A clock that was set back may have cost it its number.
        self.council.life = members.me.incarnation
        for peer in {*range(self._size), *members.alive(), *members.lost()} - {self._rank}:
            self.say(peer, Knock())


def settle(future: Future[Any], result: Any = None, error: Exception | None = None) -> None:
    """End a future, unless it has ended."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
