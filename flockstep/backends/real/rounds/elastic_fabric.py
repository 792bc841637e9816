"""A node's way to the others in an elastic run: rounds among those who are there, over the mailbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from torch import Tensor

from flockstep.backends.real.drive import in_background
from flockstep.backends.real.mailbox.endpoint import Endpoint
from flockstep.backends.real.mailbox.http import Deadline
from flockstep.backends.real.mailbox.mail_fabric import MailFabric
from flockstep.backends.real.membership.member_line import Member
from flockstep.backends.real.rounds.assembly import NOWHERE, Assembly, Meeting, settle
from flockstep.backends.real.rounds.council.council import BEATS
from flockstep.backends.real.rounds.council.words import Key, View
from flockstep.backends.real.rounds.live_checkpoint import ASK_STATE, LiveCheckpoint, Offered, fetch
from flockstep.backends.real.rounds.results import ASK_RESULT, Results, hear_result
from flockstep.backends.real.rounds.view_log import ViewLog
from flockstep.backends.real.thread_pool import run_on_thread
from flockstep.elastic import Elastic
from flockstep.errors import Deadlock, FlockstepError, LeftOut, LostPeer, nodes_named
from flockstep.message import Message

_GLANCE = 0.2
# In patiences: whoever was let in asks at once, and again and again until it has everything.
_KEPT_FOR = 10


class ElasticFabric(MailFabric):
    """This process's way to the others, whoever they are at the moment."""

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: float,
        open_endpoint: Callable[[], Endpoint],
        elastic: Elastic,
        *,
        newcomer: bool = False,
        founder: bool = True,
        publish_leaving: Callable[[Member], None] = lambda me: None,
    ) -> None:
        super().__init__(
            rank, size, timeout, open_endpoint, newcomer=newcomer, founder=founder, publish_leaving=publish_leaving
        )
        self._elastic = elastic
        self._assembly: Assembly | None = None
        self._results, self._offered = Results(), Offered()
        self.log = ViewLog()
        """How the view has changed, for reports."""
        self.last_words: Callable[[], None] = lambda: None
        """Called now and then when this node's program has returned: some may still wait to be let in."""

    @property
    def assembly(self) -> Assembly:
        """This node's council at work, which begins when it is first needed."""
        box = self.mailbox()
        with self._lock:
            if self._assembly is None:
                # Nobody has spoken yet: which life of each is meant, they will say.
                view = NOWHERE if self.newcomer else View(1, 0, dict.fromkeys(range(self._size), 0))
                box.answer(ASK_STATE, self._offered.answer)
                box.answer(ASK_RESULT, self._results.answer)
                self._assembly = Assembly(box, self._size, self._elastic, self.timeout, self.log, view)
                self._assembly.has_returned = lambda: self.last_words()
            return self._assembly

    # Rounds ---------------------------------------------------------------------------------------------------------

    def mean(self, v: Tensor, channel: str, round: int) -> Future[Tensor]:
        return self._bring(Key(channel, round), v)

    def exchange(self, messages: Sequence[Message], channel: str, round: int) -> Future[list[Message]]:
        return self._bring(Key(channel, round), list(messages))

    def _bring(self, key: Key, thing: Any) -> Meeting:
        is_own = not self.assembly.is_before_me(key)
        # Brought in any case: if none of those whose round it was is left, it is taken with what their donors had.
        meeting = self.assembly.bring(key, thing)
        if not is_own:
            run_on_thread(partial(self._listen, key, thing, meeting))
        return meeting

    def wait(self, future: Future[Any], where: str, channel: str, round: int) -> Any:
        deadline = Deadline(self.timeout)
        with self.log.waiting(is_main=not in_background()):
            while True:
                try:
                    return future.result(_GLANCE)
                except TimeoutError:
                    self.check()
                    if deadline.is_over:
                        why = f"node {self._rank} waited {self.timeout:g} s in {where}: {self._why()}"
                        raise Deadlock(why, rank=self._rank, channel=channel, round=round) from None

    def check(self) -> None:
        """Raise what has become of this node, if anything has: LeftOut where the others go on without it."""
        self._check_error()
        if self.assembly.is_left_out:
            raise LeftOut(f"the others have gone on without node {self._rank}", rank=self._rank)

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _why(self) -> str:
        view = self.assembly.council.view
        lost = sorted(set(view.active) & set(self.mailbox().members.lost()))
        if not lost:
            return f"{nodes_named(view.active)} are in the run, and not all of them have come"
        least, left = self._elastic.least(len(view.active)), len(view.active) - len(lost)
        short = f"{nodes_named(lost)} lost, {left} of {len(view.active)} left"
        return f"{short}, and at least {least} must be there (Elastic.min_nodes)"

    # What came of rounds that are not this node's own -----------------------------------------------------------------

    def remember(self, channel: str, round: int, ranks: tuple[int, ...], result: Any) -> None:
        """Keep what came of a background round, for those who come while it is under way."""
        self._results.remember(Key(channel, round), ranks, result)

    def _listen(self, key: Key, thing: Any, meeting: Meeting) -> None:
        """Hear from the others what came of a round that began before this node was in."""
        deadline = Deadline(self.timeout)
        while not (meeting.done() or self.assembly.is_left_out or self._error or deadline.is_over):
            for peer in self.peers():
                found = self._result_of(peer, key)
                # Unless it is being taken just now, by those who came.
                if found is not None and self.assembly.withdraw(key):
                    meeting.ranks, result = found
                    is_mean = isinstance(thing, Tensor)
                    settle(meeting, result.view(thing.shape).to(thing.device) if is_mean else result)
                    return
            self._pause()

    def _result_of(self, peer: int, key: Key) -> Any:
        with suppress(LostPeer):
            return hear_result(partial(self.ask, peer, ASK_RESULT), key)
        return None

    def _pause(self) -> None:
        with self.assembly.news:
            self.assembly.news.wait(self.assembly.patience / BEATS)

    # Who comes --------------------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether this node could let somebody in now: it stands between two steps, and others wait for that."""
        with self.assembly.turn:
            return self.assembly.council.may_admit

    def let_in(self, state: LiveCheckpoint, firsts: dict[str, int]) -> None:
        """Let those in who knock; they find this state here. ``firsts`` is the first round of theirs, by channel."""
        with self.assembly.turn:
            council = self.assembly.council
            if council.admit(firsts, self.assembly.now):
                election = council.election
                self._offered.keep(council.view.epoch if election is None else election.epoch, state)

    def tidy(self) -> None:
        """Forget states that were kept for others, once they have them."""
        self._offered.tidy(_KEPT_FOR * self.assembly.patience)

    def come_in(self, found: Callable[[], bool]) -> LiveCheckpoint | None:
        """Wait until this node is let in, and get the state of whoever has let it in; None if it has ``found`` that it
        must begin the run again, since nobody else can.
        """
        deadline = Deadline(self.timeout)
        while (view := self._admitted(deadline, found)) is not None:
            epoch = view.let_in[self._rank]
            state = None
            with suppress(LostPeer):
                state = fetch(partial(self.ask, view.leader, ASK_STATE), epoch)
                if state is None:
                    # Whoever has let it in has forgotten: it is one that comes, once more.
                    self.assembly.begin_again()
            with self.assembly.turn:
                if state is not None and self.assembly.council.fill(epoch, self.assembly.now):
                    return state
            self._pause()
        return None

    def _admitted(self, deadline: Deadline, found: Callable[[], bool]) -> View | None:
        patience = Deadline(self.assembly.patience)
        while True:
            with self.assembly.news:
                self._check_error()
                if self.assembly.council.is_in:
                    return self.assembly.council.view
                try:
                    self.assembly.news.wait(min(_GLANCE, deadline.left()))
                except TimeoutError:
                    waited = f"node {self._rank} timed out after {self.timeout:g} s while joining"
                    raise Deadlock(f"{waited}: no running node let it in", rank=self._rank) from None
            # Not with the first knock: whoever lives must have had time to answer it.
            if patience.is_over:
                if found():
                    return None
                patience = Deadline(self.assembly.patience)

    # When all were lost -----------------------------------------------------------------------------------------------

    def may_found(self, count: int) -> bool:
        """Whether so many of those whom the run began with may begin it again."""
        return count >= self._elastic.least(self._size)

    def ask_soon(self, peer: int, topic: str, message: Message) -> Message:
        """Ask one that has nothing else to do: LostPeer if there is no reply soon."""
        return self.mailbox().ask(peer, topic, message, self.assembly.patience)

    # The end ----------------------------------------------------------------------------------------------------------

    def leave(self, rounds: dict[str, int]) -> None:
        """Bring nothing more, and be there for the others until all have left."""
        self.assembly.leave()
        super().leave(rounds)

    def fail(self, error: FlockstepError) -> None:
        super().fail(error)
        if self._assembly is not None:
            with self._assembly.news:
                self._assembly.news.notify_all()

    def close(self) -> None:
        if self._assembly is not None:
            self._assembly.close()
        super().close()
        if self._assembly is not None:
            self._assembly.close_outboxes()
