"""Councils of several nodes in virtual time: words that are late, lost or doubled, nodes that die, pause and come.

What must hold is checked as it happens: see ``World.deliver`` and ``World.carry_out``; that all end, by ``World.run``.
"""

import heapq
import itertools
import random
from dataclasses import dataclass, field

from flockstep.backends.real.rounds.council.council import Council
from flockstep.backends.real.rounds.council.words import Key, Knock, View, Word
from flockstep.elastic import Elastic

PATIENCE = 1.0
TICK = PATIENCE / 8
FOR_EVER = 1e9
LIMIT = 300.0
OUTSIDE = View(0, -1, {})


@dataclass
class Fault:
    """At a moment: a "crash" of a node, for so long; a "pause"; a "cut" between it, and those below, and the rest."""

    kind: str
    node: int
    at: float
    seconds: float

    def holds(self, now):
        return self.at <= now < self.at + self.seconds


@dataclass(eq=False)
class Node:
    """A program that brings something to round after round, of a channel in its loop and of some in the background."""

    rank: int
    life: int
    council: Council = field(init=False)
    history: dict = field(default_factory=dict)
    """Of each channel, what was delivered: key, attempt, ranks."""
    under_way: set = field(default_factory=set)
    waits: str = ""
    """The channel whose round its program stands still for."""
    snapshots: dict = field(default_factory=dict)
    has_ended: bool = False
    dead: bool = False
    has_crashed: bool = False

    def past(self, channel):
        return tuple(self.history.get(channel, ()))


class World:
    """A run of so many nodes and rounds. A background channel is begun at every step and taken two steps later."""

    def __init__(
        self,
        seed,
        size,
        rounds,
        faults=(),
        *,
        loss=0.0,
        late=0.0,
        min_nodes=None,
        background=0,
        program=None,
        slow=None,
    ):
        self.random = random.Random(seed)
        self.size, self.rounds, self.loss, self.late, self.background = size, rounds, loss, late, background
        self.elastic = Elastic(min_nodes=min_nodes)
        self.program, self.slow = program or {}, slow or {}
        """Of some ranks, how many rounds they take part in and how long a step takes, where they differ."""
        self.now, self._order, self._heap = 0.0, itertools.count(), []
        self.faults = list(faults)
        self.lives = itertools.count(1)
        self.rings: dict = {}
        self.results: dict = {}
        """Of each key, who has had which result."""
        self.pasts: dict = {}
        self._may_have_ended = False
        self.left_out = 0
        self.words = 0
        self.on_word = lambda node, peer, word: True
        """Whether a word is to arrive: for tests that lose some of their choice."""
        self.on_delivery = lambda node, key: None
        self.on_view = lambda node, view: None
        self.nodes: dict[int, Node] = {}
        for rank in range(size):
            self.start(rank, View(1, 0, dict.fromkeys(range(size), 0)))
        for fault in self.faults:
            if fault.kind == "crash":
                self.at(fault.at, lambda fault=fault: self.crash(fault.node, fault.seconds))

    def at(self, moment, call):
        heapq.heappush(self._heap, (moment, next(self._order), call))

    def after(self, most, call):
        self.at(self.now + self.random.random() * most, call)

    # Nodes ----------------------------------------------------------------------------------------------------------

    def start(self, rank, view=OUTSIDE):
        node = self.nodes[rank] = Node(rank, next(self.lives))
        node.council = Council(rank, node.life, view, self.elastic, PATIENCE, Port(self, node))
        self.at(self.now, lambda: self.tick(node))
        if rank in view.members:
            self.step(node)

    def crash(self, rank, seconds=FOR_EVER):
        node = self.nodes[rank]
        if not node.dead and not node.has_ended:
            node.dead = node.has_crashed = True
            if seconds < FOR_EVER:
                self.at(self.now + seconds, lambda: self.start(rank))

    def lives_on(self, node):
        return self.nodes[node.rank] is node and not node.dead and not node.has_ended

    def acts(self, node):
        return self.lives_on(node) and not self.stands_still(node.rank)

    def stands_still(self, rank):
        return any(f.kind == "pause" and f.node == rank and f.holds(self.now) for f in self.faults)

    def are_connected(self, a, b):
        return not any(f.kind == "cut" and f.holds(self.now) and (a <= f.node) != (b <= f.node) for f in self.faults)

    def reaches(self, a, b):
        return self.lives_on(self.nodes[a]) and self.lives_on(self.nodes[b]) and self.are_connected(a, b)

    def whenever_it_acts(self, node, call):
        """Now, or when a pause has ended."""
        if self.acts(node):
            call()
        elif self.lives_on(node):
            self.at(self.now + TICK, lambda: self.whenever_it_acts(node, call))

    def tick(self, node):
        if not self.lives_on(node):
            return
        if not self.stands_still(node.rank):
            self.act(node)
        self.at(self.now + TICK, lambda: self.tick(node))

    def act(self, node):
        council = node.council
        if council.empty:
            for rank in self.nodes.keys() - {node.rank}:
                self.say(node, rank, Knock())
        elif council.has_left:
            self.let_in(node)
        council.tick(self.now)
        node.has_ended = council.all_have_left
        self._may_have_ended = True

    # Programs -------------------------------------------------------------------------------------------------------

    def let_in(self, node):
        firsts = {channel: len(past) for channel, past in node.history.items()}
        for channel, _ in node.under_way:
            firsts[channel] = len(node.past(channel)) + 1
        if node.council.admit(firsts, self.now):
            epoch = node.council.election.epoch if node.council.election else node.council.view.epoch
            state = {channel: list(past) for channel, past in node.history.items()}
            node.snapshots[epoch] = state, set(node.under_way)

    def step(self, node):
        """Compute for a while, and go to the next round."""
        self.after(0.3, lambda: self.whenever_it_acts(node, lambda: self.compute(node)))

    def compute(self, node):
        seconds = self.slow.get(node.rank, 0.0)
        self.at(self.now + seconds, lambda: self.whenever_it_acts(node, lambda: self.go_on(node)))

    def go_on(self, node):
        k = len(node.past("model"))
        for channel in (f"fragment {i}" for i in range(self.background)):
            due = any(c == channel and round <= k - 2 for c, round in node.under_way)
            if due or (k >= self.program.get(node.rank, self.rounds) and any(c == channel for c, _ in node.under_way)):
                node.waits = channel
                return
        node.waits = ""
        if k >= self.program.get(node.rank, self.rounds):
            node.council.leave(self.now)
            return
        self.let_in(node)
        if node.waits == "" and self.lives_on(node):
            self.begin(node, k)

    def begin(self, node, k):
        started = [Key("model", k)]
        for i in range(self.background):
            channel = f"fragment {i}"
            if (k + i) % 3 == 0 and not any(c == channel for c, _ in node.under_way):
                key = Key(channel, len(node.past(channel)))
                node.under_way.add((channel, k))
                started.insert(0, key)
        node.waits = "model"
        for key in started:
            node.council.bring(key, self.now)

    def take(self, node, key, entry):
        self.hold(node, key, entry[1:])
        node.history.setdefault(key.channel, []).append(entry)
        node.under_way = {(c, k) for c, k in node.under_way if c != key.channel}
        if node.waits == key.channel:
            node.waits = ""
            self.step(node)

    def listen(self, node, key):
        """Hear of others what came of a round that began before this node was in."""
        node.council.bring(key, self.now)

        def ask():
            if len(node.past(key.channel)) > key.round:
                return
            for other in self.nodes.values():
                if other is not node and self.reaches(node.rank, other.rank) and self.acts(other):
                    past = other.past(key.channel)
                    if len(past) > key.round and node.council.withdraw(key):
                        self.take(node, key, past[key.round])
                        return
            self.at(self.now + TICK, lambda: self.whenever_it_acts(node, ask))

        self.at(self.now, lambda: self.whenever_it_acts(node, ask))

    # Words ----------------------------------------------------------------------------------------------------------

    def say(self, node, peer, word: Word):
        if not self.lives_on(node) or not self.on_word(node, peer, word):
            return
        self.words += 1
        other, life = self.nodes[peer], node.life
        if not self.are_connected(node.rank, peer):
            return
        if other.has_ended or (other.dead and self.random.random() < 0.5):
            self.after(0.05, lambda: self.refuse(node, other))
            return
        if self.random.random() < self.loss:
            return

        def arrive():
            self.whenever_it_acts(
                self.nodes[peer],
                lambda: self.nodes[peer].council.hear(node.rank, life, word, self.now),
            )

        for _ in range(1 + (self.random.random() < self.loss)):
            self.after(3 * PATIENCE if self.random.random() < self.late else 0.05, arrive)

    def refuse(self, node, other):
        if self.acts(node) and self.nodes[other.rank] is other and not self.lives_on(other):
            node.council.gone(other.rank)

    # Rings ----------------------------------------------------------------------------------------------------------

    def carry_out(self, node, key, attempt, ranks):
        assert node.rank in ranks
        assert key.round == len(node.past(key.channel))
        ring = self.rings.setdefault((key, attempt, ranks), {})
        ring[node.rank] = node
        # All who bring something to a round have the same past.
        past = node.past(key.channel)
        assert self.pasts.setdefault((key, attempt, ranks), past) == past
        if set(ring) == set(ranks):
            self.after(0.2, lambda: self.end_ring(ring, key, attempt))

    def end_ring(self, ring, key, attempt):
        members = ring.values()
        whole = all(map(self.acts, members)) and all(self.reaches(a, b) for a in ring for b in ring)
        if not whole and all(map(self.lives_on, members)) and self.random.random() < 0.5:
            # As a connection does that waits for its network, or for the other side.
            self.after(1.0, lambda: self.end_ring(ring, key, attempt))
            return
        for node in members:
            self.after(0.1, lambda node=node: self.tell(node, key, attempt, whole or self.random.random() < 0.4))

    def tell(self, node, key, attempt, is_finished):
        def tell():
            (node.council.finished if is_finished else node.council.failed)(key, attempt, self.now)

        self.whenever_it_acts(node, tell)

    def deliver(self, node, key, attempt, ranks):
        if not self.lives_on(node):
            # It died within this very call.
            return
        past = node.past(key.channel)
        assert key.round == len(past), f"node {node.rank} takes {key} after {len(past)}"
        assert (key, attempt, ranks) in self.rings
        assert set(self.rings[key, attempt, ranks]) == set(ranks)
        assert self.pasts.setdefault((key, attempt, ranks), past) == past
        self.take(node, key, (key, attempt, ranks))
        self.on_delivery(node, key)

    def hold(self, node, key, result):
        """Of one key there is one result: of all who have ever had another, each has died. A run may become two only if
        it is asked to.
        """
        self.results.setdefault(key, {}).setdefault(result, []).append(node)
        if self.elastic.min_nodes is None:
            results = self.results[key].items()
            holders = [holder for other, holders in results if other != result for holder in holders]
            # Those who listened take a round themselves if all whose own it was are lost; one may live, cut off.
            is_cut_off = [key.channel != "model" and not node.council.view.has(h.rank, h.life) for h in holders]
            excused = [h.has_crashed or cut_off for h, cut_off in zip(holders, is_cut_off, strict=True)]
            assert all(excused), f"{key} has two results"

    # Views ----------------------------------------------------------------------------------------------------------

    def installed(self, node, view, before):
        assert node.rank in view.members
        self.on_view(node, view)
        if node.council.empty:
            epoch = view.let_in[node.rank]
            self.after(1.0, lambda: self.whenever_it_acts(node, lambda: self.fetch(node, epoch)))

    def fetch(self, node, epoch):
        view = node.council.view
        if not node.council.empty or view.let_in.get(node.rank) != epoch:
            return
        donor = self.nodes[view.leader]
        if epoch not in donor.snapshots or not self.reaches(node.rank, donor.rank):
            self.at(self.now + TICK, lambda: self.whenever_it_acts(node, lambda: self.fetch(node, epoch)))
        else:
            history, under_way = donor.snapshots[epoch]
            # It travels for a while.
            self.after(0.5, lambda: self.whenever_it_acts(node, lambda: self.fill(node, epoch, history, under_way)))

    def fill(self, node, epoch, history, under_way):
        if node.council.fill(epoch, self.now):
            node.history = {channel: list(past) for channel, past in history.items()}
            for key, *result in itertools.chain.from_iterable(history.values()):
                self.hold(node, key, tuple(result))
            node.under_way = set(under_way)
            for channel, _ in under_way:
                self.listen(node, Key(channel, len(node.past(channel))))
            self.step(node)

    def leave_out(self, node):
        self.left_out += 1
        node.dead = True
        self.after(1.0, lambda: self.nodes[node.rank] is node and self.start(node.rank))

    # The end --------------------------------------------------------------------------------------------------------

    def run(self, limit=LIMIT):
        """ "done" when all have ended; "over" if some came when all others had; "all down" if no state is left."""
        while self._heap and self.now < limit:
            self.now, _, call = heapq.heappop(self._heap)
            call()
            if self._may_have_ended:
                self._may_have_ended = False
                if ended := self.has_come_to_an_end():
                    return ended
        return "hang"

    def has_come_to_an_end(self):
        nodes = self.nodes.values()
        if all(node.has_ended or self.is_down_for_good(node) for node in nodes):
            return "done"
        if any(f.at > self.now for f in self.faults) or any(n.dead and not self.is_down_for_good(n) for n in nodes):
            return ""
        if all(node.council.empty or node.dead for node in nodes):
            return "all down"
        ended, staying = [n for n in nodes if n.has_ended], [n for n in nodes if self.lives_on(n)]
        if ended and all(n.council.empty or self.is_left_behind(n, ended) for n in staying):
            return "over"
        return ""

    def is_left_behind(self, node, ended):
        """Whether those who have ended had gone on without it, and it has not heard of that before they ended."""
        mine = node.council.view
        return any(n.council.view.is_after(mine) and node.rank not in n.council.view.members for n in ended)

    def is_down_for_good(self, node):
        return node.dead and any(
            f.kind == "crash" and f.node == node.rank and f.seconds >= FOR_EVER for f in self.faults
        )


class Port:
    """A council's, in this world."""

    def __init__(self, world, node):
        self._world, self._node = world, node

    def say(self, peer, word):
        self._world.say(self._node, peer, word)

    def carry_out(self, key, attempt, ranks):
        self._world.carry_out(self._node, key, attempt, ranks)

    def abandon(self, attempt):
        pass

    def deliver(self, key, attempt, ranks):
        self._world.deliver(self._node, key, attempt, ranks)

    def installed(self, view, before):
        self._world.installed(self._node, view, before)

    def left_out(self, view):
        self._world.leave_out(self._node)
