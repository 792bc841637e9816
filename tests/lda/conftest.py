"""A small corpus that has topics."""

import pytest


@pytest.fixture(scope="session")
def corpus():
    # Here: without SciPy the tests are skipped, not this file.
    from lda_corpora import drawn

    return drawn(120, 50, 5)
