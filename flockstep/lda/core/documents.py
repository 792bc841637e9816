"""What topics a document is about, given the topics: the inner loop, for a batch of documents.

    phi_wk ~ weight(gamma_k) topic_wk,    gamma_k = alpha + sum_w n_w phi_wk        until gamma stands still

The first few rounds are over all topics. By then most topics have next to none of the document; they are dropped, the
rest is copied to a small block with words side by side, and the other rounds run on that: for fifty words and a
hundred topics it is a tenth of the work. Documents of few words are drawn instead (see draws.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flockstep.lda.core.collapsed import begin, collapsed_round, tell_collapsed
from flockstep.lda.core.draws import draw
from flockstep.lda.core.expectations import compiled, in_place, weights

# Keeps a word that no topic knows from dividing by zero; far below any weight that counts.
_TINY = np.float32(1e-25)


@compiled
def infer(
    starts: Any,
    words: Any,
    counts: Any,
    chosen: Any,
    slots: Any,
    block: Any,
    factor: Any,
    alpha: Any,
    vb: bool,
    collapsed: bool,
    full_rounds: int,
    rounds: int,
    tolerance: Any,
    negligible: Any,
    gamma: Any,
    places: Any,
    learn: bool,
    statistics: Any,
    drawn: bool,
    seed: Any,
) -> int:
    """Fit ``gamma`` from where it is, in the row that ``places`` has for each chosen document; add to ``statistics``.

    ``block`` has a row of topic weights per slot and ``slots`` the slot of every word; ``factor`` belongs to topics.
    Statistics still lack the factor ``block``. Returns the rounds taken in all.
    """
    topics = factor.size
    most = 1
    for d in range(chosen.size):
        most = max(most, starts[chosen[d] + 1] - starts[chosen[d]])
    scale, mass = np.empty(topics, np.float32), np.empty(topics, np.float32)
    active = np.empty(topics, np.int64)
    packed, norms = np.empty(topics * most, np.float32), np.empty(most, np.float32)
    kept = np.empty(topics * most if collapsed else 0, np.float32)
    rows = np.empty(most, np.int64)
    small, small_scale = np.empty(topics, np.float32), np.empty(topics, np.float32)
    small_factor, small_alpha = np.empty(topics, np.float32), np.empty(topics, np.float32)
    limit = tolerance * np.float32(topics)
    total = 0
    for d in range(chosen.size):
        first, last = starts[chosen[d]], starts[chosen[d] + 1]
        length = last - first
        said, mine = counts[first:last], gamma[places[d]]
        for j in range(length):
            rows[j] = slots[words[first + j]]
        if drawn:
            of_this = seed + np.uint64(chosen[d])
            total += draw(block, rows[:length], said, factor, alpha, of_this, mine, statistics)
            continue
        weights(mine, factor, vb, scale)
        taken, moved = 0, limit + np.float32(1)
        while taken < min(full_rounds, rounds) and moved >= limit:
            moved = _full_round(block, rows[:length], said, scale, alpha, mine, mass)
            weights(mine, factor, vb, scale)
            taken += 1
        count = 0
        for k in range(topics):
            if mine[k] - alpha[k] > negligible:
                active[count] = k
                count += 1
            else:
                mine[k] = alpha[k]
        few = active[:count]
        side = packed[: count * length].reshape(count, length)
        now, weight, part = small[:count], small_scale[:count], small_factor[:count]
        before = small_alpha[:count]
        for a in range(count):
            before[a] = alpha[few[a]]
        _pack(block, rows[:length], few, mine, scale, factor, side, now, weight, part)
        shares = kept[: count * length if collapsed else 0].reshape(count if collapsed else 0, length)
        if collapsed:
            begin(side, part, shares)
            # What stands still where words confirm themselves need not stand still now.
            moved = limit + np.float32(1)
        while taken < rounds and moved >= limit:
            if collapsed:
                moved = collapsed_round(side, said, before, now, shares, norms[:length])
            else:
                moved = _small_round(side, said, weight, before, now, norms[:length])
                weights(now, part, vb, weight)
            taken += 1
        for a in range(count):
            mine[few[a]] = now[a]
        if learn and collapsed:
            tell_collapsed(side, rows[:length], said, part, few, now, shares, norms[:length], statistics)
        elif learn:
            _tell(side, rows[:length], said, weight, few, norms[:length], statistics)
        total += taken
    return total


@in_place
def _full_round(block: Any, rows: Any, said: Any, scale: Any, alpha: Any, mine: Any, mass: Any) -> Any:
    """One round over all topics; how far gamma moved."""
    topics = scale.size
    for k in range(topics):
        mass[k] = np.float32(0)
    for j in range(rows.size):
        row = block[rows[j]]
        norm = _TINY
        for k in range(topics):
            norm += scale[k] * row[k]
        share = said[j] / norm
        for k in range(topics):
            mass[k] += share * row[k]
    moved = np.float32(0)
    for k in range(topics):
        fresh = alpha[k] + scale[k] * mass[k]
        moved += abs(fresh - mine[k])
        mine[k] = fresh
    return moved


@in_place
def _pack(
    block: Any, rows: Any, few: Any, mine: Any, scale: Any, factor: Any, side: Any, now: Any, weight: Any, part: Any
) -> None:
    """The active topics side by side, each with its words in one piece."""
    for a in range(few.size):
        now[a], weight[a], part[a] = mine[few[a]], scale[few[a]], factor[few[a]]
    for j in range(rows.size):
        row = block[rows[j]]
        for a in range(few.size):
            side[a, j] = row[few[a]]


@in_place
def _small_round(side: Any, said: Any, weight: Any, alpha: Any, now: Any, norms: Any) -> Any:
    """One round over the active topics; how far gamma moved."""
    length = said.size
    _spread(side, said, weight, norms)
    moved = np.float32(0)
    for a in range(now.size):
        mass = np.float32(0)
        for j in range(length):
            mass += norms[j] * side[a, j]
        fresh = alpha[a] + weight[a] * mass
        moved += abs(fresh - now[a])
        now[a] = fresh
    return moved


@in_place
def _spread(side: Any, said: Any, weight: Any, norms: Any) -> None:
    """norms_j <- n_j / sum_a weight_a side_aj."""
    length = said.size
    for j in range(length):
        norms[j] = _TINY
    for a in range(weight.size):
        for j in range(length):
            norms[j] += weight[a] * side[a, j]
    for j in range(length):
        norms[j] = said[j] / norms[j]


@in_place
def _tell(side: Any, rows: Any, said: Any, weight: Any, few: Any, norms: Any, statistics: Any) -> None:
    """Add the expected counts of this document, without the factor that all documents share."""
    _spread(side, said, weight, norms)
    for j in range(rows.size):
        row = statistics[rows[j]]
        for a in range(few.size):
            row[few[a]] += norms[j] * weight[a]
