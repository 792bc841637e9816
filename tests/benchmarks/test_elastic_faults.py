"""What the benchmark of misfortunes makes of diaries: by hand, and as laws over many of them."""

import json
import random

import pytest

from benchmarks.elastic_faults import __main__ as elastic_faults
from benchmarks.elastic_faults import figures, parted
from benchmarks.elastic_faults.diary import Diary, Reader, told
from benchmarks.elastic_faults.parted import Parting


def steps(node, *moments, first=1):
    return [{"what": "step", "node": node, "at": at, "step": first + k} for k, at in enumerate(moments)]


def rounds(node, *ones, among=(0, 1)):
    return [{"what": "round", "node": node, "at": at, "round": k, "among": among} for at, k in ones]


def test_what_is_done_again_is_no_progress():
    lines = steps(0, 1.0, 2.0, 3.0) + steps(0, 6.0, 7.0, 8.0, first=2)
    assert figures.progress(lines, 0) == [1.0, 2.0, 3.0, 8.0]


def test_a_wait_counts_from_its_beginning_and_to_the_end_of_the_time():
    moments = [1.0, 2.0, 5.0, 6.0]
    assert figures.gaps(moments, 2.5, 5.5) == [3.0, 0.5]
    assert figures.gaps(moments, 2.0, 5.0) == [3.0]
    assert figures.gaps([], 2.0, 5.0) == [3.0]


@pytest.mark.parametrize("seed", range(20))
def test_waits_fill_the_time(seed):
    luck = random.Random(seed)
    moments = sorted(luck.uniform(0, 10) for _ in range(luck.randrange(12)))
    begin, end = sorted(luck.uniform(0, 10) for _ in range(2))
    before = max((moment for moment in moments if moment <= begin), default=begin)
    found = figures.gaps(moments, begin, end)
    assert sum(found) == pytest.approx(end - before)
    assert all(gap >= 0 for gap in found)


def test_seconds_lost_are_those_beyond_the_usual_of_who_lost_most():
    lines = steps(0, 1.0, 2.0, 3.0, 6.0, 7.0) + steps(1, 1.0, 2.0, 5.0, 8.0)
    assert figures.usual_gap(lines, [0, 1], 1.0, 2.0) == 1.0
    assert figures.lost(lines, [0], 2.5, 7.0, usual=1.0) == 2.0
    assert figures.lost(lines, [0, 1], 2.5, 8.0, usual=1.0) == 4.0
    assert figures.longest(lines, [0, 1], 2.5, 8.0) == 3.0


def test_all_are_together_when_the_last_has_the_first_round_of_all():
    lines = rounds(0, (1.0, 1), (3.0, 2), (5.0, 3)) + rounds(1, (1.1, 1), (5.5, 3))
    lines += rounds(0, (2.0, 9), among=(0,))
    assert parted.together(lines, 2, 0.0) == 1.1
    assert parted.together(lines, 2, 2.0) == 5.5
    assert parted.together(lines, 2, 5.2) is None


@pytest.mark.parametrize(
    ("numbers", "unbroken"), [([3, 4, 5], True), ([3], True), ([], True), ([3, 5], False), ([3, 3], False)]
)
def test_steps_that_follow_each_other(numbers, unbroken):
    lines = [line for k, number in enumerate(numbers) for line in steps(0, float(k), first=number)]
    assert parted.is_unbroken(lines, 0) == unbroken


@pytest.mark.parametrize(("counts", "told"), [([3], "3"), ([3, 3], "3"), ([5, 3, 4], "3 to 5")])
def test_one_number_or_two(counts, told):
    assert parted.most_and_least(counts) == told
    assert elastic_faults.largest(told) == max(counts)


def side(nodes, steps, rounds, **rest):
    row = {"nodes": nodes, "steps meanwhile": steps, "rounds meanwhile": rounds, "every step once": True}
    return row | {"left out": 0, "last step": "160", "models alike": True, "all together after": 1.0} | rest


LARGER = side("0 1 2", "100 to 102", "6")
SMALLER = side("3 4", "16", "0", **{"every step once": False, "left out": 2})


def test_a_parting_is_met_where_only_the_larger_side_goes_on():
    assert all(elastic_faults.parted_bars(Parting(3, 2, 1.0), [LARGER, SMALLER]).values())
    assert all(elastic_faults.parted_bars(Parting(2, 3, 1.0), [SMALLER, LARGER]).values())


@pytest.mark.parametrize(
    "sides",
    [
        [LARGER, SMALLER | {"steps meanwhile": "16 to 40"}],
        [LARGER | {"rounds meanwhile": "0"}, SMALLER],
        [LARGER | {"every step once": False}, SMALLER],
        [LARGER | {"left out": 1}, SMALLER],
        [LARGER | {"last step": "176"}, SMALLER],
        [LARGER | {"models alike": False}, SMALLER],
    ],
)
def test_a_parting_is_not_met_otherwise(sides):
    assert list(elastic_faults.parted_bars(Parting(3, 2, 1.0), sides).values()).count(False) == 1


def test_of_two_halves_both_must_wait():
    halves = [side("0 1", "15", "0"), side("2 3", "16", "0")]
    assert all(elastic_faults.parted_bars(Parting(2, 2, 1.0), halves).values())
    halves[0]["steps meanwhile"] = "200"
    assert not all(elastic_faults.parted_bars(Parting(2, 2, 1.0), halves).values())


def test_a_diary_is_read_along_whole_lines_at_a_time(tmp_path):
    reader, diary = Reader(tmp_path), Diary(tmp_path, 3)
    diary.write("joins")
    diary.close()
    assert [line["what"] for line in reader.look()] == ["joins"]
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:
        file.write(json.dumps({"what": "step", "node": 3, "at": 1e12})[:10])
    assert len(reader.look()) == 1
    with path.open("a") as file:
        file.write(json.dumps({"what": "step", "node": 3, "at": 1e12})[10:] + "\n")
    assert [line["what"] for line in reader.look()] == ["joins", "step"]
    assert told(reader.look(), "step", node=3, after=1.0) == reader.lines[1:]
    assert told(reader.look(), "step", node=2) == []
