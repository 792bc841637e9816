"""Short spans are put together, and no second is lost."""

import itertools

import pytest

from flockstep.live.coarse import at_most, coarsen
from flockstep.timeline import KINDS, Span


def alternating(count, length=0.001):
    return [Span(0, KINDS[k % 3], k * length, (k + 0.75) * length) for k in range(count)]


def seconds(spans, kind):
    return sum(span.end - span.begin for span in spans if span.kind == kind)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000])
@pytest.mark.parametrize("grain", [1e-9, 0.004, 0.0101, 10.0])
def test_the_seconds_of_each_kind_stay(count, grain):
    spans = alternating(count)
    made = coarsen(spans, grain)
    for kind in KINDS:
        assert seconds(made, kind) == pytest.approx(seconds(spans, kind))


def test_long_spans_stay_as_they_are():
    spans = [Span(2, "computing", 0.0, 1.0), Span(2, "talking", 1.0, 1.5), Span(2, "computing", 1.5, 3.0)]
    assert coarsen(spans, 0.1) == spans


def test_within_a_grain_there_is_one_of_each_kind_in_its_place():
    made = coarsen(alternating(12), 0.0041)
    assert made[0].begin == 0.0
    assert [span.kind for span in made[:3]] == list(KINDS)
    assert all(before.end <= after.begin + 1e-12 for before, after in itertools.pairwise(made))


def test_there_are_at_most_so_many():
    spans = alternating(5000)
    made = at_most(spans, 100, 0.001)
    assert 0 < len(made) <= 100
    assert seconds(made, "waiting") == pytest.approx(seconds(spans, "waiting"))
    assert at_most(spans[:100], 100, 0.001) == spans[:100]
