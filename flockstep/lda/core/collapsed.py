"""The rounds of a document under "cvb0": a word's topics are judged by the document's *other* words.

    phi_wk ~ (gamma_k - phi_wk) topic_wk,    gamma_k = alpha + sum_w n_w phi_wk        until gamma stands still

Without its own share left out, a word confirms itself: what it was taken for makes it likelier to be taken for that
again. Asuncion, Welling, Smyth, Teh 2009; on batches, Foulds, Boyles, DuBois, Smyth, Welling 2013.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flockstep.lda.core.expectations import in_place

# As in documents.py, which calls these.
_TINY = np.float32(1e-25)
_ONE = np.float32(1)


@in_place
def begin(side: Any, part: Any, shares: Any) -> None:
    """The topics' own factor into ``side``; no word has a share yet."""
    for a in range(part.size):
        for j in range(side.shape[1]):
            side[a, j] *= part[a]
            shares[a, j] = np.float32(0)


@in_place
def collapsed_round(side: Any, said: Any, alpha: Any, now: Any, shares: Any, norms: Any) -> Any:
    """One round over the active topics; how far gamma moved."""
    length = said.size
    for j in range(length):
        norms[j] = _TINY
    for a in range(now.size):
        for j in range(length):
            # Of a word that is said less than once, no more than is there.
            fresh = side[a, j] * (now[a] - min(said[j], _ONE) * shares[a, j])
            shares[a, j] = fresh
            norms[j] += fresh
    for j in range(length):
        norms[j] = _ONE / norms[j]
    moved = np.float32(0)
    for a in range(now.size):
        mass = np.float32(0)
        for j in range(length):
            shares[a, j] *= norms[j]
            mass += said[j] * shares[a, j]
        moved += abs(alpha[a] + mass - now[a])
        now[a] = alpha[a] + mass
    return moved


@in_place
def tell_collapsed(
    side: Any, rows: Any, said: Any, part: Any, few: Any, now: Any, shares: Any, norms: Any, statistics: Any
) -> None:
    """Add the expected counts of this document, without the factor that all documents share."""
    length = said.size
    for j in range(length):
        norms[j] = _TINY
    for a in range(few.size):
        for j in range(length):
            shares[a, j] = now[a] - min(said[j], _ONE) * shares[a, j]
            norms[j] += side[a, j] * shares[a, j]
    for j in range(length):
        norms[j] = said[j] / norms[j]
    for j in range(length):
        row = statistics[rows[j]]
        for a in range(few.size):
            row[few[a]] += norms[j] * part[a] * shares[a, j]
