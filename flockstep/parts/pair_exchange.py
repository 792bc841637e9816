"""Two nodes average what they hold, a pair at a time: the exchange of Swarm and ADPSGD.

    d = r (Q(v_j) - Q(v_i)) / 2;      v_i <- v_i + d;      v_j <- v_j - d

Both apply the same d, from the same two decoded vectors, so v_i + v_j stays what it was whatever the codec does; r is 1
where the codec is exact (see codec_trust.py).

A meeting is atomic: between saying what it holds and taking what it gains, a node meets nobody else. So every meeting
brings two nodes together, and the sum of |v - mean|^2 never grows. If meetings overlapped, a node would give away half
of what it no longer has: two nodes that call each other at once would swap models, and differences could grow.

Nobody waits for that:

-   Who calls trains on, and says "busy" to others until its reply is there. Who is told so draws another partner.
-   Nodes take turns, or all would be calling when all are called. Who was called calls next. Who has called stays at
    home until it is called, or for a random number of phases, two on average; a call longer than a phase counts as one.
    Of two that called each other at once, and were both told "busy", the one with the smaller number calls next.
-   A reply may be lost on its way. The caller asks again under the same number and gets the same reply, which is kept
    until the caller says that it has it. Only the death of a partner leaves half a meeting; and a link so slow that no
    reply comes within the timeout, however often the caller asks: it then goes on as if its partner had died.

What a meeting has brought is taken in by the strategy, between two meetings (``node.undisturbed``). Batch-norm
statistics are no sum of steps, and differences added late could carry a variance below zero: a node goes half the way
to its partner's, from wherever its own are then.
"""

from __future__ import annotations

from contextlib import suppress

from torch import Tensor

from flockstep.codecs.codec import Codec
from flockstep.codecs.coder import asks_again, coder_for
from flockstep.codecs.raw import Raw
from flockstep.errors import LostPeer
from flockstep.message import NOTHING, Message
from flockstep.node import Node, Pending
from flockstep.parts.codec_trust import believed, error, marked, unmarked
from flockstep.parts.partners import in_full, partners
from flockstep.parts.slow_network import SlowNetworkWarning
from flockstep.parts.statistics import statistics, trained
from flockstep.topologies import Topology

_BUSY = Message.of_bytes(b"", "busy")
# How often a partner that lives is asked for a reply that did not come.
_TRIES = 20
_REMEDY = "send less (codec=Modular(bits=8)), or take LocalSGD(period=16), which waits"


class PairExchange:
    """One node's meetings: what it holds, and whose turn it is."""

    def __init__(
        self, node: Node, topic: str, v: Tensor, codec: Codec, topology: Topology, *, owner: str = "Swarm"
    ) -> None:
        self._node, self._topic, self._v, self._topology = node, topic, v, topology
        self._coder = coder_for(codec, node, v)
        self._shown: Tensor | None = None
        self._statistics: Tensor | None = None
        # A later life counts from elsewhere: its first call is none that was answered before.
        self._number = node.incarnation << 20
        self._calling = False
        self._call: Pending[int | None] | None = None
        self._phases, self._since = 1, node.step_count
        """How many phases the last call took, and after which step it began."""
        self._rarely = SlowNetworkWarning(f"{owner} on node {node.rank}", remedy=_REMEDY)
        self._called = node.rank % 2 == 0
        """Whether somebody called since: it is this node's turn."""
        self._turned_away: set[int] = set()
        """Who called while this node was calling."""
        self._at_home = self._stay()
        self._replies: dict[int, tuple[int, Message]] = {}
        """What a caller was answered, and under which number, until it says that it has it."""
        node.answer(topic, self._answer)
        node.answer(f"{topic} thanks", self._has_it)

    async def begin_phase(self) -> None:
        """Call somebody in the background, if it is this node's turn."""
        if self._call is not None and not self._call.done:
            self._phases += 1
            return
        await self.close()
        if not self._called and self._at_home > 0:
            self._at_home -= 1
            return
        self._called, self._phases, self._since = False, 1, self._node.step_count
        self._call = self._node.spawn(self._meet_somebody())

    def take_statistics(self, x: Tensor) -> None:
        """Go half the way to those of the last partner, if there are any; ``undisturbed``, as part of a merge."""
        if self._statistics is not None:
            statistics(x, self._node).lerp_(self._statistics, 0.5)
            self._statistics = None

    async def close(self) -> None:
        """Wait for the call that is under way."""
        if self._call is not None:
            met = await self._call
            self._call, self._at_home = None, self._stay()
            if met is not None:
                self._node.spawn(self._thank(met, self._number))
                if self._phases > 1:
                    # Otherwise it is the user who chose how long a phase is.
                    self._rarely.see(self._node.step_count - self._since)

    def show(self, x: Tensor) -> None:
        """The program is about to return, and others may still call: what they bring is its last word ``x``, too."""
        with self._node.undisturbed():
            x.copy_(self._v)
            self._shown = x

    def _stay(self) -> int:
        return int(self._node.rng.geometric(0.5)) * self._phases

    # The caller -----------------------------------------------------------------------------------------------------

    async def _meet_somebody(self) -> int | None:
        """Whom it has met."""
        for peer in partners(self._node, self._topology):
            with self._node.undisturbed():
                self._calling = True
                self._turned_away.clear()
                v = self._v.clone()
            try:
                met = await self._meet(peer, v)
            finally:
                self._calling = False
            # Where a call takes longer than a phase, as many are calling as are not: somebody has to be at home.
            if met or self._phases > 1:
                return peer if met else None
        return None

    async def _meet(self, peer: int, v: Tensor) -> bool:
        """Average with this one; False if it is busy or gone."""
        node = self._node
        self._number += 1
        message = self._coder.write(v)
        reply, mine = await self._ask(peer, message, v)
        if reply is not None and asks_again(reply):
            message = self._coder.mend(v, message, reply)
            reply, mine = await self._ask(peer, message, v)
        if reply is not None and asks_again(reply):
            # Its training went on, and it is further away by now.
            reply, mine = await self._ask(peer, self._coder.exact(v), v)
        if reply is None or reply.codec == _BUSY.codec:
            node.count("partners busy" if reply is not None else "partners lost")
            self._called = self._called or (peer in self._turned_away and node.rank < peer)
            return False
        share, _, inner = unmarked(reply)
        # It knew the distance when it chose its scale, so that this can be read; but nothing is taken on trust.
        theirs = in_full(self._coder.read(inner, v), node, peer)
        difference = trained(theirs, node).sub_(trained(mine, node))
        with node.undisturbed():
            trained(self._v, node).add_(difference, alpha=share / 2)
            self._statistics = statistics(theirs, node)
            self._calling = False
        node.count("exchanges")
        return True

    async def _thank(self, peer: int, number: int) -> None:
        # Lost thanks are none: the next call says it, too.
        with suppress(LostPeer):
            await self._node.ask(peer, f"{self._topic} thanks", marked(NOTHING, 0.0, number))

    async def _ask(self, peer: int, message: Message, v: Tensor) -> tuple[Message | None, Tensor]:
        """Its reply, None if it is gone or says nothing however often it is asked; and what it was told of ``v``."""
        decoded = self._coder.own(message, v)
        numbered = marked(message, self._error(message, decoded, v), self._number)
        for _ in range(_TRIES):
            try:
                return await self._node.ask(peer, self._topic, numbered), decoded
            except LostPeer:
                if peer not in self._node.peers():
                    break
                self._node.count("asked again")
        return None, decoded

    def _error(self, message: Message, decoded: Tensor, v: Tensor) -> float:
        return 0.0 if message.codec == Raw.name else error(trained(decoded, self._node), trained(v, self._node))

    # Who is called --------------------------------------------------------------------------------------------------

    def _answer(self, peer: int, message: Message) -> Message:
        their_error, number, inner = unmarked(message)
        if peer in self._replies and self._replies[peer][0] == number:
            return self._replies[peer][1]
        # What it asked before is settled, or it would not ask anew.
        self._replies.pop(peer, None)
        if self._calling:
            self._turned_away.add(peer)
            return _BUSY
        read = self._coder.read(inner, self._v)
        if isinstance(read, Message):
            return read
        node, reply = self._node, self._coder.reply(self._v, read)
        decoded = self._coder.own(reply, self._v)
        errors = their_error + self._error(reply, decoded, self._v)
        self._statistics = statistics(read.vector, node).clone()
        difference = trained(read.vector, node).sub_(trained(decoded, node))
        share = believed(difference, errors)
        trained(self._v, node).add_(difference, alpha=share / 2)
        reply = marked(reply, share)
        self._replies[peer], self._called = (number, reply), True
        if self._shown is not None:
            self._shown.copy_(self._v)
        return reply

    def _has_it(self, peer: int, message: Message) -> Message:
        if peer in self._replies and self._replies[peer][0] == unmarked(message)[1]:
            del self._replies[peer]
        return NOTHING
