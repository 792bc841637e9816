"""The variational bound on the log-likelihood, in double precision, as Hoffman, Blei and Bach (2010) have it.

E[log p(words | theta, beta)]
+ E[log p(theta | alpha) - log q(theta | gamma)]
+ E[log p(beta | eta) - log q(beta | lambda)]
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.lda.core.expectations import compiled
from flockstep.lda.core.topics import Topics

_LEAST = 1e-250
_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


def documents_bound(
    topics: Topics, starts: Any, words: Any, counts: Any, gamma: NDArray[np.floating[Any]], alpha: NDArray[Any]
) -> float:
    """The first two terms, for documents in compressed rows whose topics are ``gamma``."""
    total = topics.totals + topics.prior * topics.n_words
    gamma, alpha = gamma.astype(np.float64), alpha.astype(np.float64)
    return float(_documents(topics.settle(), topics.prior, total, starts, words, counts, gamma, alpha))


def topics_bound(topics: Topics) -> float:
    """The last term."""
    total = topics.totals + topics.prior * topics.n_words
    return float(_dirichlets(topics.settle(), topics.prior, total))


@compiled
def psi_and_log_gamma(x: Any) -> Any:
    """The digamma function and log(gamma) of x > 0, to 1e-11.

    Both are of x + n by their series for large x, and come back by p = x (x + 1) ... (x + n - 1): log(gamma) less by
    log p, psi by p' / p.
    """
    product, slope = 1.0, 0.0
    while x < 8.0:
        slope = slope * x + product
        product *= x
        x += 1.0
    log_x, inverse = math.log(x), 1.0 / x
    r = inverse * inverse
    tail = r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r * (1 / 240 - r * (1 / 132 - r * 691 / 32760)))))
    digamma = log_x - 0.5 * inverse - tail - slope / product
    series = inverse * (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r * (1 / 1680 - r * (1 / 1188 - r * 691 / 360360)))))
    return digamma, (x - 0.5) * log_x - x + _HALF_LOG_2_PI + series - math.log(product)


@compiled
def psi(x: Any) -> Any:
    """The digamma function."""
    return psi_and_log_gamma(x)[0]


@compiled
def _documents(rows: Any, prior: Any, total: Any, starts: Any, words: Any, counts: Any, gamma: Any, alpha: Any) -> Any:
    topics = total.size
    log_total, about, weight = np.empty(topics), np.empty(topics), np.empty(topics)
    # exp(psi(lambda)) of each word is needed once per document that has it, and computed once per word.
    slots = np.full(len(rows), -1, np.int64)
    count = 0
    for j in range(starts[0], starts[len(gamma)]):
        if slots[words[j]] < 0:
            slots[words[j]] = count
            count += 1
    logs = np.empty((count, topics))
    for w in range(len(rows)):
        if slots[w] >= 0:
            for k in range(topics):
                logs[slots[w], k] = psi(prior + rows[w, k])
    powers = np.exp(logs)
    for k in range(topics):
        log_total[k] = psi(total[k])
    log_alpha = np.empty(topics)
    for k in range(topics):
        log_alpha[k] = math.lgamma(alpha[k])
    score = 0.0
    for d in range(len(gamma)):
        whole = 0.0
        for k in range(topics):
            whole += gamma[d, k]
        log_whole = psi(whole)
        for k in range(topics):
            log_mean, log_gamma = psi_and_log_gamma(gamma[d, k])
            elog = log_mean - log_whole
            score += (alpha[k] - gamma[d, k]) * elog + log_gamma - log_alpha[k]
            about[k] = elog - log_total[k]
            weight[k] = math.exp(about[k])
        score += math.lgamma(alpha.sum()) - math.lgamma(whole)
        for j in range(starts[d], starts[d + 1]):
            s, likely = slots[words[j]], 0.0
            for k in range(topics):
                likely += weight[k] * powers[s, k]
            score += counts[j] * (math.log(likely) if likely > _LEAST else _log_sum(about, logs[s]))
    return score


@compiled
def _log_sum(a: Any, b: Any) -> Any:
    """log(sum(exp(a + b))) where the exponentials alone would vanish."""
    most = (a + b).max()
    return most + math.log(np.exp(a + b - most).sum())


@compiled
def _dirichlets(rows: Any, prior: Any, total: Any) -> Any:
    words, topics = rows.shape
    score = topics * (math.lgamma(prior * words) - words * math.lgamma(prior))
    log_total = np.empty(topics)
    for k in range(topics):
        log_total[k] = psi(total[k])
        score -= math.lgamma(total[k])
    for w in range(words):
        for k in range(topics):
            x = prior + rows[w, k]
            log_mean, log_gamma = psi_and_log_gamma(x)
            score += (prior - x) * (log_mean - log_total[k]) + log_gamma
    return score
