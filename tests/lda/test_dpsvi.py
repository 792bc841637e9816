"""DPSVI on virtual nodes: against the plain trainer, against NumPy under the schedule that happened, and counted."""

import threading

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from lda_corpora import drawn

import flockstep as fs
from flockstep.lda import LDA
from flockstep.lda.core.learner import Learner
from flockstep.lda.core.topics import Topics, Update
from flockstep.lda.core.training import Schedule
from flockstep.lda.data.corpora import Corpus
from flockstep.lda.nodes import dpsvi_server as keeper_module
from flockstep.lda.nodes.dpsvi import DPSVI
from flockstep.lda.nodes.dpsvi_messages import Draft, read
from flockstep.lda.nodes.dpsvi_server import DPSVIServer
from flockstep.lda.nodes.pending_update import Page
from flockstep.lda.nodes.topic_workload import CommonSchedule, TopicDocuments
from flockstep.node import stream
from flockstep.workloads.convex import Quadratics

SLOW = {"network": fs.Network(latency="30 ms", bandwidth="10 Mbit/s"), "compute": fs.Compute(step="20 ms", spread=0.3)}


def model(topics=5, **other):
    return LDA(topics, **{"batch_size": 8, "learning_decay": 0.7, "learning_offset": 2.0, **other})


def table(workload, x):
    """n of a vector, in double precision."""
    cut = workload.n_words * workload.n_topics
    rows, aged, _ = np.split(x.numpy().astype(float), [cut, cut + workload.n_words])
    return rows.reshape(workload.n_words, -1) * np.exp(aged)[:, None]


@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
@pytest.mark.slow
def test_one_node_is_the_plain_trainer(corpus, objective):
    workload = TopicDocuments(corpus, model=model(objective=objective), seed=3)
    trace = fs.simulate(DPSVI(), workload, nodes=1, steps=19, seed=4)
    start = workload.start().numpy()[: 50 * 5].reshape(50, 5).copy()
    topics = Topics(start, prior=float(workload.start()[-1]), objective=objective)
    plain = model(objective=objective)
    plain._set_priors()
    plain.topics_, plain.n_batch_iter_ = topics, 1
    batches, rng = [], stream(4, 0, "data")
    while len(batches) < 19:
        batches += Corpus.of(corpus).batches(8, rng)
    plain._trainer(120).run(batches[:19], of=120)
    np.testing.assert_allclose(table(workload, trace.models[0]), topics.settle(), rtol=1e-6)


class Log:
    """Every batch's update in the order its node made them, and the order in which the server's table saw them."""

    def __init__(self, monkeypatch):
        self.batches, self.events, self.arrived, self._rank = {}, [], [], None
        gradient, learn, take = TopicDocuments.gradient, Learner.learn, DPSVIServer._take
        stepped, rest = DPSVIServer.stepped, DPSVIServer.rest

        def logged_gradient(documents, x, rng):
            self._rank = documents._part
            return gradient(documents, x, rng)

        def logged_learn(learner, batch, **how):
            update = learn(learner, batch, **how)
            dense = np.zeros((learner._topics.n_words, learner._topics.n_topics))
            dense[update.words] = update.statistics
            self.batches.setdefault(self._rank, []).append((np.exp(update.log_decay), dense))
            return update

        def logged_take(keeper, peer, push):
            (self.events if keeper._resting else self.arrived).append((peer, push.batches))
            take(keeper, peer, push)

        def logged_stepped(keeper, batches):
            self._settle([(0, batches)])
            stepped(keeper, batches)

        def logged_rest(keeper):
            self._settle([])
            rest(keeper)

        monkeypatch.setattr(TopicDocuments, "gradient", logged_gradient)
        monkeypatch.setattr(Learner, "learn", logged_learn)
        monkeypatch.setattr(DPSVIServer, "_take", logged_take)
        monkeypatch.setattr(DPSVIServer, "stepped", logged_stepped)
        monkeypatch.setattr(DPSVIServer, "rest", logged_rest)

    def _settle(self, own):
        self.events += own + self.arrived
        self.arrived.clear()

    def replay(self, start):
        """The server's table, in double precision."""
        left = {rank: iter(updates) for rank, updates in self.batches.items()}
        for rank, count in self.events:
            for _ in range(count):
                a, s = next(left[rank])
                start = a * start + s
        assert all(next(updates, None) is None for updates in left.values())
        return start


@pytest.mark.parametrize("max_steps_in_flight", [0, 1, 5])
@pytest.mark.parametrize(("nodes", "period"), [(2, 1), (2, 3), (3, 2)])
@pytest.mark.cases(test=4)
def test_the_servers_table_is_that_of_numpy_under_the_schedule_that_happened(
    corpus, monkeypatch, nodes, period, max_steps_in_flight
):
    workload, log = TopicDocuments(corpus, model=model(), seed=3), Log(monkeypatch)
    trace = fs.simulate(
        DPSVI(bits=32, period=period, max_steps_in_flight=max_steps_in_flight),
        workload,
        nodes=nodes,
        steps=17,
        seed=1,
        **SLOW,
    )
    assert {rank: len(updates) for rank, updates in log.batches.items()} == dict.fromkeys(range(nodes), 17)
    expected = log.replay(table(workload, workload.start()))
    np.testing.assert_allclose(table(workload, trace.models[0]), expected, rtol=1e-4, atol=1e-5)


def test_a_server_that_only_serves(corpus, monkeypatch):
    workload, log = TopicDocuments(corpus, model=model(), seed=3), Log(monkeypatch)
    strategy = DPSVI(bits=32, server=1, server_trains=False)
    trace = fs.simulate(strategy, workload, nodes=3, steps=10, seed=1, **SLOW)
    assert [node.gradients for node in trace.nodes] == [10, 0, 10]
    log.events = [({0: 0, 2: 1}[peer], count) for peer, count in log.events]
    expected = log.replay(table(workload, workload.start()))
    np.testing.assert_allclose(table(workload, trace.models[1]), expected, rtol=1e-4, atol=1e-5)


def test_rates_follow_one_schedule_of_all_batches(corpus, monkeypatch):
    given = []
    following = CommonSchedule.next
    monkeypatch.setattr(CommonSchedule, "next", lambda self: given.append(following(self)) or given[-1])
    workload = TopicDocuments(corpus, model=model(), seed=3)
    fs.simulate(DPSVI(period=1, max_steps_in_flight=0), workload, nodes=3, steps=40, compute=fs.Compute(step="20 ms"))
    alone = Schedule(decay=0.7, offset=2.0)
    rates = [alone.next() for _ in range(120)]
    # What others have not pushed yet is not counted, so that numbers are a few behind.
    assert len(given) == len(rates)
    assert sum(given) == pytest.approx(sum(rates), rel=0.05)
    assert sum(given[60:]) == pytest.approx(sum(rates[60:]), rel=0.05)


# Every batch exactly once ---------------------------------------------------------------------------------------------

ROOM = 200


class Counting(TopicDocuments):
    """A batch is a word of its own, counted once, and nothing decays."""

    def __init__(self):
        super().__init__(np.ones((40, 4 * ROOM)), model=LDA(1, topic_word_prior=0.25))

    def start(self):
        return torch.cat([torch.zeros(self.n_words * 2), torch.ones(1), torch.full((1,), 0.25)])

    def gradient(self, x, rng):
        self.work_on(x)
        self.count = getattr(self, "count", 0)
        word = np.array([ROOM * self._part + self.count], np.int32)
        self.count += 1
        one = np.ones((1, 1), np.float32)
        update = Update(log_decay=0.0, words=word, statistics=one, totals=np.ones(1))
        self.topics.fold(update)
        self.recorder.record(update)
        return torch.zeros(1).expand(x.numel())


def counts(x):
    return x.numpy()[: 4 * ROOM].reshape(4, ROOM)


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("max_steps_in_flight", [0, 1, 7])
@pytest.mark.parametrize(("nodes", "period"), [(1, 3), (2, 1), (3, 4), (4, 2)])
@pytest.mark.cases(check=6, test=6)
def test_every_batch_enters_exactly_once(nodes, period, max_steps_in_flight, bits):
    strategy = DPSVI(period=period, max_steps_in_flight=max_steps_in_flight, bits=bits)
    trace = fs.simulate(strategy, Counting(), nodes=nodes, steps=fs.Budget(steps=150), seed=2, **SLOW)
    steps = [node.steps for node in trace.nodes]
    assert sum(steps) >= 150
    for rank, x in trace.models.items():
        seen = counts(x)
        assert set(np.unique(seen)) <= {0, 1}
        assert seen[rank].sum() == steps[rank]
    np.testing.assert_array_equal(counts(trace.models[0]).sum(1), [*steps, *[0] * (4 - nodes)])


def test_lost_letters_cost_nothing():
    faults = [fs.faults.MessageLoss(share=0.3)]
    trace = fs.simulate(
        DPSVI(period=2, max_steps_in_flight=3),
        Counting(),
        nodes=3,
        steps=60,
        seed=5,
        faults=faults,
        timeout="1 s",
        **SLOW,
    )
    assert sum(node.counts.get("server lost", 0) for node in trace.nodes) > 5
    np.testing.assert_array_equal(counts(trace.models[0]).sum(1), [60, 60, 60, 0])
    for x in trace.models.values():
        assert counts(x).max() == 1


def test_a_worker_that_dies_costs_its_last_batches_only():
    crash = fs.faults.Crash(node=2, at="0.65 s")
    trace = fs.simulate(
        DPSVI(period=2, max_steps_in_flight=2),
        Counting(),
        nodes=3,
        steps=60,
        seed=5,
        faults=[crash],
        timeout="1 s",
        **SLOW,
    )
    learned, dead = counts(trace.models[0]), trace.nodes[2].steps
    np.testing.assert_array_equal(learned[:2].sum(1), [60, 60])
    assert 10 < dead < 60
    # Two batches in a push that is under way, two in the next, and the one it was at.
    assert dead - 5 <= learned[2].sum() <= dead
    assert learned.max() == 1


@pytest.mark.slow
def test_a_worker_that_comes_back_gets_the_whole_table():
    crash = fs.faults.Crash(node=2, at="0.65 s", back_after="0.15 s")
    trace = fs.simulate(
        DPSVI(period=2, max_steps_in_flight=2),
        Counting(),
        nodes=3,
        steps=60,
        seed=5,
        faults=[crash],
        timeout="1 s",
        **SLOW,
    )
    others, back = counts(trace.models[0]), counts(trace.models[2])
    np.testing.assert_array_equal(others[:2].sum(1), [60, 60])
    # It numbers its batches from the beginning again, so that those of both lives are counted.
    assert others[2].sum() > 60
    assert back[:2].sum() > 60
    assert back[:2].max() == 1


@pytest.mark.slow
def test_a_server_that_comes_back_takes_the_table_of_a_worker():
    crash = fs.faults.Crash(node=0, at="0.65 s", back_after="0.15 s")
    trace = fs.simulate(
        DPSVI(period=2, max_steps_in_flight=2),
        Counting(),
        nodes=3,
        steps=60,
        seed=5,
        faults=[crash],
        timeout="0.2 s",
        **SLOW,
    )
    assert trace.nodes[0].counts["server restored"] == 1
    learned = counts(trace.models[0])
    # What the first worker had not heard of the other's when the server died is lost, and nothing else of theirs.
    assert learned[1].sum() >= 60 - 8
    assert learned[2].sum() == 60
    assert learned[1:3].max() == 1


def test_without_a_server_workers_lose_patience():
    crash = fs.faults.Crash(node=0, at="0.1 s")
    with pytest.raises(fs.LostPeer, match=r"lost the server, node 0: \d+ pushes in a row had no reply.*patience is 20"):
        fs.simulate(DPSVI(patience=20), Counting(), nodes=2, steps=100, faults=[crash], timeout="50 ms", seed=1, **SLOW)


# Topics ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_counts_stay_positive_however_late_a_push_comes(corpus):
    workload = TopicDocuments(corpus, model=model(learning_decay=0.51, learning_offset=1.0), seed=3)
    slow = {"network": fs.Network(latency="5 s", bandwidth="1 Mbit/s"), "compute": fs.Compute(step="1 ms")}
    strategy = DPSVI(period=40, max_steps_in_flight=1000, bits=8)
    trace = fs.simulate(strategy, workload, nodes=3, steps=200, seed=1, **slow)
    for x in trace.models.values():
        assert (table(workload, x) >= 0).all()
    assert trace.rows[-1].loss < trace.rows[0].loss


@pytest.mark.thorough
def test_two_nodes_are_as_good_as_one_and_nearly_twice_as_fast():
    documents = drawn(900, 120, 6, length=60)
    # With large first rates two nodes end in worse topics more often than one: what each learned first is merged.
    slow_start = model(6, batch_size=25, objective="map", learning_decay=0.6, learning_offset=10.0)
    # From some beginnings, either finds worse topics than from others: the median of nine tells.
    perplexity = {name: [] for name in ("one", "two", "two, 8 bits")}
    seconds = {name: [] for name in perplexity}
    for seed in range(9):
        workload = TopicDocuments(documents[:700], model=slow_start, held_out=documents[700:], seed=seed)
        for name, nodes, bits in (("one", 1, 32), ("two", 2, 32), ("two, 8 bits", 2, 8)):
            steps = fs.Budget(steps=28 * 6)
            trace = fs.simulate(
                DPSVI(bits=bits, max_steps_in_flight=5),
                workload,
                nodes=nodes,
                steps=steps,
                seed=1,
                record_every=1000,
                **SLOW,
            )
            perplexity[name].append(workload.loss(trace.models[0]))
            seconds[name].append(max(node.seconds for node in trace.nodes))
    one, two, short = (np.median(found) for found in perplexity.values())
    assert two < 1.02 * one
    assert short < 1.02 * one
    assert one < 0.6 * workload.loss(workload.start())
    assert np.median(seconds["two"]) < np.median(seconds["one"]) / 1.7


def test_fewer_bits_are_fewer_bytes(corpus):
    workload = TopicDocuments(corpus, model=model(50, batch_size=30), seed=3)
    sent = [
        fs.simulate(DPSVI(bits=bits), workload, nodes=2, steps=10, seed=1).nodes[1].bytes_sent for bits in (8, 16, 32)
    ]
    assert sent[0] < sent[1] < sent[2]


def test_threads_of_a_node_take_a_batch_each(corpus, monkeypatch):
    log = Log(monkeypatch)
    workload = TopicDocuments(corpus, model=model(n_jobs=2, batch_size=5), seed=3)
    fs.simulate(DPSVI(period=1), workload, nodes=2, steps=6, seed=1)
    assert {rank: len(updates) for rank, updates in log.batches.items()} == {0: 12, 1: 12}
    assert sum(count for rank, count in log.events if rank == 1) == 12


def test_documents_are_dealt_without_remainder_and_never_twice(corpus):
    whole = TopicDocuments(corpus, model=model())
    for size in (1, 2, 7):
        taken = []
        for rank in range(size):
            shard = whole.shard(rank, size)
            next(shard._endless(np.random.default_rng(0)))
            taken.append(shard._own)
        assert sum(len(own) for own in taken) == 120
        total = sum(float(own.counts.sum()) for own in taken)
        assert total == corpus.sum()


def test_refusals(corpus):
    with pytest.raises(fs.NodeFailed, match="DPSVI is for TopicDocuments"):
        fs.simulate(DPSVI(), Quadratics(dim=3), nodes=2, steps=1)
    with pytest.raises(fs.NodeFailed, match=r"DPSVI.server must be one of the 2 nodes, got 2"):
        fs.simulate(DPSVI(server=2), TopicDocuments(corpus, model=model()), nodes=2, steps=1)
    with pytest.raises(ValueError, match=r"DPSVI.bits"):
        DPSVI(bits=12)
    with pytest.raises(ValueError, match="too few for 121 nodes"):
        TopicDocuments(corpus, model=model()).shard(0, 121)
    with pytest.raises(TypeError, match=r"TopicDocuments.model must be an LDA\(...\), got str"):
        TopicDocuments(corpus, model="lda")
    with pytest.raises(ValueError, match="Negative values in data"):
        TopicDocuments(-corpus, model=model())


def test_a_common_schedule_alone_is_the_plain_one():
    common, plain = CommonSchedule(decay=0.6, offset=3.0), Schedule(decay=0.6, offset=3.0)
    assert [common.next() for _ in range(5)] == [plain.next() for _ in range(5)]
    common.learn(10, workers=3)
    assert [common.next() for _ in range(2)] == [14.0**-0.6, 17.0**-0.6]


def test_a_delay_makes_the_first_rates_higher_and_the_last_ones_those_of_earlier_batches():
    settings = {"decay": 0.5, "offset": 1.0}
    plain, delayed = Schedule(**settings), Schedule(**settings, delay=30.0)
    common = CommonSchedule.like(delayed)
    rates = [(plain.next(), delayed.next()) for _ in range(10_000)]
    assert all(late > usual for usual, late in rates)
    assert rates[29][1] == pytest.approx((15 + 1) ** -0.5)
    assert rates[-1][1] == pytest.approx((10_000 - 30 + 1) ** -0.5, rel=1e-4)
    assert [common.next() for _ in range(3)] == [late for _, late in rates[:3]]
    assert max(late for _, late in rates) <= 1


def test_a_server_does_not_wait_while_a_reply_is_written(corpus, monkeypatch):
    documents = TopicDocuments(corpus, model=model(), seed=3)

    class Alone:
        rank, size, rng = 0, 2, np.random.default_rng(0)

        def answer(self, topic, handler):
            self.handler = handler

        def peers(self):
            return [1]

    node, writing, go_on = Alone(), threading.Event(), threading.Event()
    written = keeper_module.written  # type: ignore[attr-defined]

    def slowly(*arguments, **named):
        writing.set()
        assert go_on.wait(30)
        return written(*arguments, **named)

    documents.work_on(documents.start())
    server = DPSVIServer(node, documents, bits=8, least=0.1, trains=True)
    hello = Draft(number=0, done=0, page=Page(50, 5, []), bits=8, least=0.0)
    question = written(hello, n_words=50, rng=node.rng)
    monkeypatch.setattr(keeper_module, "written", slowly)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(node.handler(1, question)))
    thread.start()
    assert writing.wait(30)
    stepping = threading.Thread(target=server.stepped, args=(1,), daemon=True)
    stepping.start()
    stepping.join(30)
    assert not stepping.is_alive()
    assert not replies
    go_on.set()
    thread.join(30)
    assert read(replies[0], n_words=50, n_topics=5).done == 0
    assert server.done == 1
