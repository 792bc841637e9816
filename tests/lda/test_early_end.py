"""An early end: asked for, or by a signal that comes at the worst moment."""

import signal
import threading
import time

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from flockstep.lda import LDA
from flockstep.lda.core import training
from flockstep.lda.core.learner import Rules
from flockstep.lda.core.topics import Topics
from flockstep.lda.core.training import Schedule, Trainer
from flockstep.lda.data.corpora import Corpus

LONG = 60
"""Seconds after which batches end that nobody stopped: only where something is broken."""


class Asked:
    """Says yes when it was asked so many times before."""

    def __init__(self, times):
        self.left = times

    def __call__(self):
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("n_jobs", [1, 2, 3])
@pytest.mark.parametrize("batches", [0, 1, 2, 7])
def test_it_ends_when_asked_with_what_was_learned(corpus, n_jobs, batches):
    model = LDA(5, max_iter=10**6, batch_size=20, random_state=0, n_jobs=n_jobs)
    model.fit(corpus, stop=Asked(batches))
    # Of 120 documents at most a quarter is under way at once.
    of_a_pass = -(-120 // model.batch_size_)
    assert (model.n_batch_iter_ - 1, model.n_iter_) == (batches, batches // of_a_pass)
    assert model.topics_.folds == batches
    assert np.isnan(model.bound_)
    assert np.isfinite(model.transform(corpus)).all()


def test_as_far_as_it_came_it_is_what_was_never_stopped(corpus):
    # A prior that is learned begins to be so after a third of what is to be seen, if that is less than a pass.
    settings = {"n_components": 5, "batch_size": 20, "random_state": 0, "doc_topic_prior": 0.2}
    stopped = LDA(max_iter=10**6, **settings).fit(corpus, stop=Asked(12))
    whole = LDA(max_iter=2, **settings).fit(corpus, stop=lambda: False)
    assert np.array_equal(stopped.components_, whole.components_)
    assert (stopped.n_iter_, stopped.n_batch_iter_) == (whole.n_iter_, whole.n_batch_iter_) == (2, 13)
    assert np.isfinite(whole.bound_)


@pytest.mark.parametrize("every", [None, 40])
def test_between_looks_too(corpus, every):
    model = LDA(5, max_iter=10**6, batch_size=20, random_state=0)
    model.fit(corpus[:100], eval_docs=corpus[100:], eval_docs_every=every, stop=Asked(13))
    assert (model.n_batch_iter_, model.n_iter_) == (14, 2)
    # After each pass of five batches, or after every two and at the end of a pass.
    assert len(model.eval_scores_) == (2 if every is None else 7)


@pytest.mark.parametrize("threads", [2, 3])
def test_a_signal_that_does_not_wake_whoever_waits_is_felt(corpus, monkeypatch, threads):
    """The system may give it to another thread, or to the waiting one just before it waits: both look like this."""
    waiting, sent, ran_out = threading.Event(), threading.Event(), threading.Event()
    batches = Corpus.of(corpus)
    wait = training.wait  # type: ignore[attr-defined]

    def told(*arguments, **more):
        waiting.set()
        return wait(*arguments, **more)

    def endless():
        end, rng, left = time.monotonic() + LONG, np.random.default_rng(0), 100
        while time.monotonic() < end:
            for batch in batches.batches(5, rng):
                # By now the first thread of this process sleeps.
                left -= waiting.is_set()
                if left < 0 and not sent.is_set():
                    sent.set()
                    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
                yield batch
        ran_out.set()

    monkeypatch.setattr(training, "wait", told)
    topics = Topics.noisy(50, 5, prior=0.2, objective="vb", rng=np.random.default_rng(3))
    trainer = Trainer(topics, Rules(alpha=0.2), Schedule(decay=0.7, offset=2.0), threads=threads)
    with pytest.raises(KeyboardInterrupt):
        trainer.run(endless(), of=1000)
    assert sent.is_set()
    assert not ran_out.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lda")]
