"""What is told of time and bytes: held to the reports that tell the same in sums."""

import json

import pytest

from flockstep.timeline import Span, Timeline


def told():
    timeline = Timeline()
    timeline.spend(0, "computing", 0.0, 1.0)
    timeline.spend(1, "waiting", 0.0, 0.5)
    timeline.spend(0, "talking", 1.0, 1.5)
    timeline.send(0, 1, 10)
    timeline.send(1, 0, 7)
    timeline.send(0, 1, 5)
    return timeline


def test_what_goes_on_without_a_gap_is_one_span():
    timeline = told()
    timeline.spend(0, "talking", 1.5, 2.0)
    timeline.spend(0, "talking", 2.5, 3.0)
    timeline.spend(0, "computing", 3.0, 3.0)
    assert list(timeline.of(0)) == [
        Span(0, "computing", 0.0, 1.0),
        Span(0, "talking", 1.0, 2.0),
        Span(0, "talking", 2.5, 3.0),
    ]
    assert list(timeline.of(1)) == [Span(1, "waiting", 0.0, 0.5)]


def test_bytes_by_pair():
    assert told().matrix(3) == [[0, 15, 0], [7, 0, 0], [0, 0, 0]]
    assert Timeline().matrix(1) == [[0]]


def test_seconds_by_kind():
    assert told().seconds(0) == {"computing": 1.0, "waiting": 0.0, "talking": 0.5}
    assert told().seconds(5) == {"computing": 0.0, "waiting": 0.0, "talking": 0.0}


def test_json_and_back():
    timeline = told()
    back = Timeline.from_plain(json.loads(json.dumps(timeline.to_plain())))
    assert back == timeline
    back.spend(0, "talking", 1.5, 2.0)
    assert list(back.of(0))[-1] == Span(0, "talking", 1.0, 2.0)


def test_nodes_that_began_later_are_moved_to_one_clock():
    early, late = Timeline(began=100.0), Timeline(began=102.5)
    early.spend(0, "computing", 0.0, 1.0)
    late.spend(1, "computing", 0.0, 1.0)
    late.send(1, 0, 3)
    whole = Timeline.together([late, early])
    assert whole.began == 100.0
    assert whole.spans == [Span(1, "computing", 2.5, 3.5), Span(0, "computing", 0.0, 1.0)]
    assert whole.sent == {(1, 0): 3}


@pytest.mark.parametrize("timelines", [[], [None, None]])
def test_where_nobody_kept_one_there_is_none(timelines):
    assert Timeline.together(timelines) is None


def test_both_are_told():
    other = Timeline()
    timeline = Timeline(beside=other)
    timeline.spend(0, "computing", 0.0, 1.0)
    timeline.send(0, 1, 5)
    assert (
        (timeline.spans, timeline.sent) == (other.spans, other.sent) == ([Span(0, "computing", 0.0, 1.0)], {(0, 1): 5})
    )
