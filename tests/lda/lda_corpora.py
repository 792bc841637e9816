"""Documents drawn from topics."""

import numpy as np
import scipy.sparse as sp


def drawn(documents, words, topics, seed=0, length=40):
    rng = np.random.default_rng(seed)
    beta = rng.dirichlet(np.full(words, 0.1), topics)
    theta = rng.dirichlet(np.full(topics, 0.2), documents)
    return sp.csr_array(np.array([rng.multinomial(rng.integers(1, 2 * length), t @ beta) for t in theta]))
