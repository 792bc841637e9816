"""Stochastic variational inference for LDA in plain NumPy and double precision: dense, one document at a time."""

import numpy as np
from scipy.special import psi


def weight(x, objective):
    return np.exp(psi(x)) if objective == "vb" else np.asarray(x, float)


def infer(document, table, totals, alpha, gamma, rounds, objective, full):
    """Gamma after so many rounds, and the expected counts of words by topics.

    Under "cvb0" the rounds after the first ``full`` ones leave a word's own share out, which begins with nothing.
    """
    words = np.flatnonzero(document)
    beta = weight(table[words], objective) / weight(totals, objective)
    own = np.zeros_like(beta)
    for number in range(rounds + 1):
        phi = weight(gamma - own, objective) * beta
        phi /= phi.sum(1, keepdims=True)
        if number < rounds:
            gamma = alpha + document[words] @ phi
            if objective == "cvb0" and number >= full:
                own = np.minimum(document[words], 1)[:, None] * phi
    statistics = np.zeros_like(table)
    statistics[words] = document[words, None] * phi
    return gamma, statistics


def learn(batches, table, *, prior, alpha, of, decay, offset, rounds, objective, full):
    """The table of words by topics, prior included, after batches of (documents, gamma to begin with)."""
    for t, (documents, begin) in enumerate(batches, 1):
        rho = (t + offset) ** -decay
        told = sum(
            infer(document, table, table.sum(0), alpha, gamma, rounds, objective, full)[1]
            for document, gamma in zip(documents, begin, strict=True)
        )
        table = (1 - rho) * table + rho * (prior + of / len(documents) * told)
    return table


def complete(beta, seen, hidden, alpha, rounds):
    """Document completion, one document at a time."""
    score = 0.0
    for known, asked in zip(seen, hidden, strict=True):
        theta = np.ones(len(beta))
        for _ in range(rounds):
            phi = theta[:, None] * beta
            phi /= phi.sum(0)
            theta = alpha + phi @ known
        theta /= theta.sum()
        score += asked @ np.log(theta @ beta)
    return np.exp(-score / hidden.sum())
