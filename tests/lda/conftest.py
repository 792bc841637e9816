"""A small corpus that has topics."""

import pytest
from lda_corpora import drawn


@pytest.fixture(scope="session")
def corpus():
    return drawn(120, 50, 5)
