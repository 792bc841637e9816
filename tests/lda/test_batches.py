"""How many documents an update learns from, where nobody says."""

import math

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from flockstep.lda import LDA
from flockstep.lda.core.training import fitting_batch


@pytest.mark.parametrize(
    ("topics", "length", "drawn", "wanted"),
    [
        (20, 100.0, False, 256),
        (100, 40.0, False, 500),
        (100, 12.0, False, 1024),
        (100, 3.0, True, 256),
        (1, 0.0, False, 256),
        (20, math.inf, False, 256),
    ],
)
def test_a_batch_has_words_for_every_topic(topics, length, drawn, wanted):
    assert fitting_batch(topics, length, drawn=drawn) == wanted


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, 400),
        ({"batch_size": 100}, 100),
        ({"objective": "vb"}, 1024),
        ({"n_jobs": 2}, 1024),
        ({"n_components": 2}, 256),
    ],
)
def test_what_is_used_is_told(settings, wanted):
    rng = np.random.default_rng(0)
    corpus = rng.multinomial(10, np.full(50, 0.02), 9000)
    model = LDA(**{"n_components": 20, "max_iter": 1, "random_state": 0, **settings}).fit(corpus)
    assert model.batch_size_ == wanted
