"""Averages of two exchanges where nodes are lost before, between and within these, and others come: laws over seeds.

Exchanges are carried out by hand here, by the rules that ``Node.exchange`` states: all who take part get what those who
are there gave them, or none does; who comes while one is under way hears what one of those was given.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.message import NOTHING

DIM = 7


class Member:
    """As much of a node as a coded mean needs: what it wants to exchange goes to whoever runs it."""

    elastic = True

    def __init__(self, rank, size, view, incarnation=0):
        self.rank, self.size, self.view, self.incarnation = rank, size, view, incarnation
        self.rng, self.kept = np.random.default_rng([rank, incarnation]), {}
        self.params = torch.zeros(DIM, dtype=torch.float64)
        self.trained = DIM - 2

    def keep(self, name, tensor, *, own=False):
        self.kept[name] = tensor
        return tensor

    async def exchange(self, messages, channel):
        return await _Exchange([message.copy() for message in messages], channel)


class _Exchange:
    def __init__(self, *wanted):
        self.wanted = wanted

    def __await__(self):
        return (yield self.wanted)


class Running:
    """One node in one average, up to its next exchange."""

    def __init__(self, member, mean, v):
        self.member, self.v, self.result = member, v, None
        self.is_late = False
        """Whether the average had been begun by its donor when it came."""
        self._coroutine = mean(v)
        self.go_on(None)
        # Whoever brought it may do with it what it likes.
        self.v = v.clone()
        v.fill_(float("nan"))

    def go_on(self, received):
        try:
            self.messages, self.channel = self._coroutine.send(received)
        except StopIteration as stop:
            self.result = stop.value


@dataclass
class Exchanges:
    """Carries out the exchanges of one average, with deaths and newcomers in between as ``rng`` has it."""

    size: int
    members: dict
    rng: np.random.Generator
    average: Any
    trouble: float
    listening: set = field(default_factory=set)
    """Who only hears of the exchange that is under way."""
    heard: list = field(default_factory=list)
    """What those who come are told of exchanges that are over."""
    brought: list = ()
    """Who brought something of its own to the last gather."""

    def run(self):
        for _ in range(100):
            if any(member.result is not None for member in self.members.values()):
                return
            if self.rng.random() < self.trouble:
                self._some_die()
            if self.rng.random() < self.trouble:
                self._somebody_comes()
            self._exchange()
        raise AssertionError("it does not end")

    def _some_die(self):
        for rank in self.rng.permutation(sorted(self.members))[: self.rng.integers(1, self.size + 1)].tolist():
            if len(self.members) > 1:
                del self.members[rank]
                self.listening.discard(rank)

    def _somebody_comes(self):
        away = sorted(set(range(self.size)) - set(self.members))
        if not away:
            return
        rank = int(self.rng.choice(away))
        donor = self.members[int(self.rng.choice(sorted(self.members)))]
        node = Member(rank, self.size, self._guess(donor), incarnation=1 + len(self.heard))
        new = Running(node, self.average.start(node, "x"), torch.full((DIM,), 1000.0 + rank, dtype=torch.float64))
        for channel, received in self.heard:
            assert new.channel == channel
            new.go_on([message.copy() for message in received])
        # Its donor may have begun the exchange that is under way, or be about to: then it is one of this one's, too.
        if self.rng.random() < 0.5 or donor.member.rank in self.listening:
            self.listening.add(rank)
        new.is_late = bool(self.heard) or rank in self.listening
        self.members[rank] = new

    def _guess(self, donor):
        return donor.member.view if self.rng.random() < 0.7 else (int(self.rng.integers(self.size)),)

    def _exchange(self):
        # All have decided alike, whatever has happened.
        assert len({member.channel for member in self.members.values()}) == 1
        there = sorted(set(self.members) - self.listening) or sorted(self.members)
        table = {rank: self.members[rank].messages for rank in there}
        received = {
            to: [table[by][to].copy() if by in there else NOTHING for by in range(self.size)] for to in self.members
        }
        for rank in set(self.members) - set(there):
            received[rank] = [message.copy() for message in received[there[0]]]
        if self.members[there[0]].channel == "x/gather":
            self.brought = [self.members[rank] for rank in there if table[rank][rank].codec != "listens"]
        self.heard.append((self.members[there[0]].channel, received[there[0]]))
        self.listening.clear()
        for rank, member in self.members.items():
            member.go_on(received[rank])


def vector(rng):
    return torch.from_numpy(rng.standard_normal(DIM))


@pytest.mark.cases(test=4)
@pytest.mark.parametrize(
    "nodes", [1, 2, 3, pytest.param(5, marks=pytest.mark.slow), pytest.param(9, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("trouble", [0.3, 0.8])
def test_whoever_is_lost_and_whoever_comes_all_who_end_have_one_mean_of_vectors_counted_once(nodes, trouble):
    average, begun_again, alone = fs.averages.Coded(codec=fs.codecs.Raw()), 0, 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        everybody = tuple(range(nodes))
        # The last view of a channel, or of another one: nodes need not have seen the same.
        views = [everybody if rng.random() < 0.8 else (int(rng.integers(nodes)),) for _ in everybody]
        first = {
            rank: Running(member, average.start(member, "x"), vector(rng))
            for rank, member in enumerate(Member(rank, nodes, view) for rank, view in enumerate(views))
        }
        exchanges = Exchanges(nodes, dict(first), rng, average, trouble)
        exchanges.run()
        results = [member.result for member in exchanges.members.values()]
        assert all(result is not None and torch.equal(result, results[0]) for result in results)
        # Those who were there from the beginning, as long as there are any; else those who came.
        wanted = torch.stack([member.v for member in exchanges.brought]).mean(0)
        torch.testing.assert_close(results[0], wanted, rtol=0, atol=1e-12)
        late = [member for member in exchanges.brought if member.is_late]
        assert len(late) in (0, len(exchanges.brought))
        begun_again += len(exchanges.heard) > 2
        alone += bool(late)
    # The schedules have it all.
    assert nodes == 1 or (begun_again > 20 and alone > 0)


@pytest.mark.parametrize("nodes", [1, 2, 3, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("codec", [fs.codecs.TopK(fraction=0.3), fs.codecs.Stochastic(bits=2)], ids=repr)
@pytest.mark.cases(check=1, test=3)
def test_what_feedback_holds_back_is_neither_lost_nor_doubled_when_chunks_are_cut_anew(nodes, codec):
    rng, average = np.random.default_rng(nodes), fs.averages.Compensated(codec=codec)
    members = {rank: Member(rank, nodes, tuple(range(nodes))) for rank in range(nodes)}
    means = {rank: average.start(member, "x") for rank, member in members.items()}
    put_in, taken_out = (torch.zeros(DIM, dtype=torch.float64) for _ in range(2))
    for _ in range(40):
        # Chunks are cut for other takers every time, and begun again where nodes did not agree on them.
        alike = rng.random() < 0.5
        views = [tuple(sorted(rng.permutation(nodes)[: rng.integers(1, nodes + 1)].tolist())) for _ in range(nodes)]
        running = {}
        for rank, member in members.items():
            member.view = views[0 if alike else rank]
            running[rank] = Running(member, means[rank], vector(rng))
        Exchanges(nodes, running, rng, average, trouble=0.0).run()
        put_in += torch.stack([member.v for member in running.values()]).mean(0)
        taken_out += running[0].result
        held = torch.stack([member.kept["x: residual"] for member in members.values()]).mean(0)
        held += sum(member.kept["x: residual of the mean"] for member in members.values())
        torch.testing.assert_close((taken_out - put_in)[:5] + held, torch.zeros_like(held), rtol=0, atol=1e-12)
        torch.testing.assert_close(taken_out[5:], put_in[5:], rtol=0, atol=1e-12)
