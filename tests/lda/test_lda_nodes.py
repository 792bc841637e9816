"""Topics by real nodes: threads and processes, and an estimator that is fitted by them."""

import os
import pickle
import signal

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

import scipy.sparse as sp
from lda_corpora import drawn
from test_dpsvi import Counting, counts, model

import flockstep as fs
from flockstep.lda import LDA
from flockstep.lda.data.streams import ArrayFile, BagOfWords, Blocks
from flockstep.lda.evaluate.completion import Completion
from flockstep.lda.nodes import fit_nodes as lda_nodes
from flockstep.lda.nodes.dpsvi import DPSVI
from flockstep.lda.nodes.fit_nodes import fit_on_nodes
from flockstep.lda.nodes.topic_workload import TopicDocuments

DOCUMENTS = drawn(900, 120, 6, length=60)
LEARNED, HELD_OUT = DOCUMENTS[:700], DOCUMENTS[700:]


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("on", ["threads", "processes"])
@pytest.mark.parametrize(("nodes", "bits"), [(1, 16), (2, 8), (3, 16)])
@pytest.mark.thorough
def test_real_nodes_learn_topics(on, nodes, bits):
    workload = TopicDocuments(LEARNED, model=model(6, batch_size=25, objective="map"), held_out=HELD_OUT, seed=3)
    trace = fs.launch(DPSVI(bits=bits), workload, nodes=nodes, steps=fs.Budget(steps=100), on=on, record_every=20)
    assert sum(node.steps for node in trace.nodes) >= 100
    assert workload.loss(trace.models[0]) < 0.65 * workload.loss(workload.start())
    # On a busy machine the first may have spent the budget before another has begun.
    assert (trace.nodes[0].counts.get("pushes", 0) > 0) == any(node.steps for node in trace.nodes[1:])


@pytest.mark.slow
@pytest.mark.parametrize("max_steps_in_flight", [0, 3])
def test_real_nodes_count_every_batch_once(max_steps_in_flight):
    trace = fs.launch(
        DPSVI(bits=32, max_steps_in_flight=max_steps_in_flight),
        Counting(),
        nodes=3,
        steps=40,
        on="threads",
        record_every=1000,
    )
    np.testing.assert_array_equal(counts(trace.models[0]).sum(1), [40, 40, 40, 0])
    assert max(counts(x).max() for x in trace.models.values()) == 1


class Mortal(Counting):
    """The third node is killed at its 20th batch."""

    def gradient(self, x, rng):
        if self._part == 2 and getattr(self, "count", 0) == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().gradient(x, rng)


@pytest.mark.slow
def test_a_process_that_is_killed_costs_its_last_batches_only():
    trace = fs.launch(
        DPSVI(period=2, max_steps_in_flight=2, bits=8), Mortal(), nodes=3, steps=60, on="processes", record_every=1000
    )
    learned = counts(trace.models[0]).sum(1)
    np.testing.assert_array_equal(learned[:2], [60, 60])
    assert 15 <= learned[2] <= 20
    assert 2 not in trace.models


class Doomed(TopicDocuments):
    """The server is killed at its 30th batch."""

    victim = 0

    def gradient(self, x, rng):
        self.batches = getattr(self, "batches", 0) + 1
        if self._part == self.victim and self.batches == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().gradient(x, rng)


class DoomedWorker(Doomed):
    """A worker is."""

    victim = 2


@pytest.mark.slow
@pytest.mark.parametrize("doomed", [Doomed, DoomedWorker])
def test_whoever_is_killed_the_others_go_on_and_it_is_said(doomed, monkeypatch, caplog):
    victim = doomed.victim
    monkeypatch.setattr(lda_nodes, "TopicDocuments", doomed)
    ours = LDA(6, objective="map", batch_size=25, max_iter=12, random_state=0)
    trace = fit_on_nodes(ours, LEARNED, nodes=3)
    assert f"node {victim} was killed by SIGKILL" in caplog.text
    assert "the others go on" in caplog.text
    assert sorted(trace.models) == [rank for rank in range(3) if rank != victim]
    begun = TopicDocuments(LEARNED, model=ours, held_out=HELD_OUT)
    assert Completion(HELD_OUT).of_components(ours.components_) < 0.65 * begun.loss(begun.start())
    # They took its part.
    assert sum(node.steps for node in trace.nodes) >= 12 * 700 / 25 - 30


@pytest.mark.slow
def test_an_estimator_is_fitted_by_processes():
    ours = LDA(6, objective="map", batch_size=25, max_iter=4, random_state=0)
    seen = []
    trace = fit_on_nodes(ours, LEARNED, nodes=2, eval_docs=HELD_OUT, rows=3, callback=seen.append)
    assert [row.loss for row in seen] == [row.loss for row in trace.rows]
    assert 2 <= len(seen) <= 8
    assert ours.components_.shape == (6, 120)
    assert (ours.components_ > 0).all()
    np.testing.assert_allclose(ours.transform(HELD_OUT).sum(1), 1.0, rtol=1e-5)
    assert ours.n_batch_iter_ > 4 * 700 / 25
    begun = TopicDocuments(LEARNED, model=ours, held_out=HELD_OUT)
    assert Completion(HELD_OUT).of_components(ours.components_) < 0.65 * begun.loss(begun.start())


@pytest.mark.slow
@pytest.mark.parametrize("on", ["threads", "processes"])
def test_one_that_is_stopped_has_what_was_learned(on):
    ours = LDA(6, objective="map", batch_size=25, max_iter=10**6, random_state=0)
    seen = []
    # A look after every million of steps or so would come too late: as many as there are batches in four passes.
    looks = {"eval_docs": HELD_OUT, "rows": 10**6 // 4, "callback": seen.append}
    trace = fit_on_nodes(ours, LEARNED, nodes=2, on=on, stop=lambda: len(seen) > 2, **looks)
    assert 0 < sum(node.steps for node in trace.nodes) == ours.n_batch_iter_ - 1
    assert ours.n_iter_ == (ours.n_batch_iter_ - 1) * 25 // 700 < 10**6
    begun = TopicDocuments(LEARNED, model=ours, held_out=HELD_OUT)
    assert Completion(HELD_OUT).of_components(ours.components_) < 0.65 * begun.loss(begun.start())


def test_an_estimator_is_fitted_by_threads():
    ours = LDA(6, batch_size=25, max_iter=1, random_state=0)
    fit_on_nodes(ours, LEARNED[:100], nodes=2, on="threads")
    assert ours.components_.shape == (6, 120)
    assert ours.eval_scores_ == []
    assert ours.training_seconds_ > 0


@pytest.mark.parametrize(("name", "value"), [("learning_method", "batch"), ("warm_start", True), ("seed_words", [[1]])])
def test_what_nodes_do_not_know_is_refused(name, value):
    with pytest.raises(ValueError, match=rf"LDA\.{name} is for one node"):
        fit_on_nodes(LDA(2, **{name: value}), LEARNED, nodes=2)


def blocks(size):
    return [LEARNED[first : first + size] for first in range(0, 700, size)]


@pytest.mark.parametrize("size", [1, 7, 300, 1000])
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.cases(check=4, test=4)
@pytest.mark.slow
def test_every_document_of_a_stream_is_some_nodes_own(size, nodes):
    workload = TopicDocuments(Blocks(blocks(size), n_documents=700), model=LDA(2))
    dealt = [sum(map(len, workload.shard(rank, nodes)._dealt())) for rank in range(nodes)]
    assert dealt == [len(range(rank, 700, nodes)) for rank in range(nodes)]
    words = sum(piece.counts.sum() for rank in range(nodes) for piece in workload.shard(rank, nodes)._dealt())
    assert words == LEARNED.sum()


@pytest.mark.slow
@pytest.mark.parametrize("on", ["threads", "processes"])
@pytest.mark.parametrize("kind", ["blocks", "arrays", "uci"])
@pytest.mark.cases(test=2)
def test_a_stream_is_learned_by_nodes(tmp_path, on, kind):
    if kind == "arrays":
        sp.save_npz(tmp_path / "counts.npz", sp.csr_array(LEARNED), compressed=False)
        stream = ArrayFile(tmp_path / "counts.npz", block=90)
        assert len(pickle.dumps(stream)) < 10_000 < LEARNED.data.nbytes
    elif kind == "uci":
        rows = sp.coo_array(sp.csr_array(LEARNED))
        order = np.lexsort((rows.col, rows.row))
        entries = zip(rows.row[order], rows.col[order], rows.data[order], strict=True)
        lines = [f"{d + 1} {w + 1} {int(n)}" for d, w, n in entries]
        (tmp_path / "docword.txt").write_text("\n".join(["700", "120", str(len(lines)), *lines]) + "\n")
        stream = BagOfWords(tmp_path / "docword.txt", block=90)
    else:
        stream = Blocks(blocks(90), n_documents=700)
    made = LDA(6, batch_size=25, max_iter=10, random_state=0)
    fit_on_nodes(made, stream, nodes=2, on=on)
    in_memory = LDA(6, batch_size=25, max_iter=10, random_state=0).fit(LEARNED)
    unseen = Completion(HELD_OUT)
    reached = [unseen.of_topics(each.topics_, each.doc_topic_prior_) for each in (made, in_memory)]
    assert reached[0] < 1.1 * reached[1]


def test_doubts_are_said_here_too(caplog):
    fit_on_nodes(LDA(60, batch_size=10, max_iter=1), LEARNED[:40], nodes=2, on="threads")
    assert "60 topics from 40 documents" in caplog.text


def test_refusals():
    with pytest.raises(ValueError, match=r"fit_on_nodes.nodes must be at least 1"):
        fit_on_nodes(LDA(2), LEARNED, nodes=0)
    with pytest.raises(ValueError, match="at least 2 where the server does not learn"):
        fit_on_nodes(LDA(2), LEARNED, nodes=1, strategy=DPSVI(server_trains=False))
    with pytest.raises(ValueError, match="n_components"):
        fit_on_nodes(LDA(0), LEARNED, nodes=2)
    with pytest.raises(TypeError, match="an iterator can be read once, by one"):
        fit_on_nodes(LDA(2), iter([LEARNED]), nodes=2)
    for stream in (Blocks(iter([LEARNED]), n_documents=700), Blocks([LEARNED])):
        with pytest.raises(ValueError, match="can be read again and knows its length"):
            fit_on_nodes(LDA(2), stream, nodes=2)
    with pytest.raises(ValueError, match="must have 120 columns, one per word, got 100"):
        fit_on_nodes(LDA(2), LEARNED, nodes=2, eval_docs=HELD_OUT[:, :100])
