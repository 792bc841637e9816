"""Who takes part in an elastic run: one story, whatever the nodes tell and in whatever order."""

import random

import pytest
from written import BEGAN, beat, look, view, who, write

from flockstep.live.views import _listed


def story(folder, **more):
    told = look(folder, **more)["view"]
    return told["members"], [(made["at"], made["what"], made["waited"]) for made in told["changes"]]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_plain_run_has_no_view(tmp_path, size):
    for rank in range(size):
        write(tmp_path, rank, who(rank, size), {"peers": [], "t": 1.0}, beat(9.0))
    assert look(tmp_path)["view"] is None


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_elastic_run_without_any_change(tmp_path, size):
    for rank in range(size):
        write(tmp_path, rank, who(rank, size), view(0.0, 0, range(size)), beat(9.0))
    assert story(tmp_path) == (list(range(size)), [])


def test_one_line_for_each_change_with_the_longest_wait(tmp_path):
    write(tmp_path, 0, who(0, 3), view(0.0, 0, range(3)), view(4.0, 2, (0, 2), went=[1], cost=1.0))
    write(tmp_path, 2, who(2, 3), view(0.0, 0, range(3)), view(4.1, 2, (0, 2), went=[1], cost=1.5))
    write(tmp_path, 1, who(1, 3), view(0.0, 0, range(3)), beat(2.0))
    assert story(tmp_path) == ([0, 2], [(4.0, "node 1 left out", 1.5)])


@pytest.mark.parametrize("hears_after", [-0.5, 0.0, 0.5])
def test_to_one_that_comes_all_others_are_new_and_it_is_not_asked(tmp_path, hears_after):
    write(tmp_path, 0, who(0, 3), view(0.0, 0, range(3)), view(3.0, 2, (0, 2), went=[1], cost=1.0))
    write(tmp_path, 0, view(6.0, 3, range(3), came=[1], cost=0.25))
    write(tmp_path, 1, who(1, 3), beat(2.0))
    newcomer = who(1, 3, incarnation=1, began=BEGAN + 5)
    write(tmp_path, 1, newcomer, view(1.0 + hears_after, 3, range(3), came=range(3)), incarnation=1)
    members, changes = story(tmp_path)
    assert members == [0, 1, 2]
    assert changes == [(6.0 + min(0.0, hears_after), "node 1 came", 0.25), (3.0, "node 1 left out", 1.0)]


def test_one_that_came_and_went_at_once(tmp_path):
    write(tmp_path, 0, who(0, 4), view(0.0, 0, range(3)), view(3.0, 2, (0, 3), came=[3], went=[1, 2], cost=1.0))
    assert story(tmp_path) == ([0, 3], [(3.0, "node 3 came, nodes 1, 2 left out", 1.0)])


def test_a_run_that_all_were_lost_of_counts_anew_and_is_not_mixed_up(tmp_path):
    for rank in range(2):
        write(tmp_path, rank, who(rank, 3), view(0.0, 0, range(3)), view(3.0, 2, (0, 1), went=[2], cost=1.0))
    write(tmp_path, 2, who(2, 3), view(0.0, 0, range(3)))
    again = [who(rank, 3, incarnation=1, began=BEGAN + 5) for rank in range(2)]
    write(tmp_path, 0, again[0], view(1.0, 1, [0], came=[0]), view(2.0, 2, (0, 1), came=[1], cost=0.5), incarnation=1)
    write(tmp_path, 1, again[1], view(2.1, 2, (0, 1), came=[0, 1]), incarnation=1)
    assert story(tmp_path) == (
        [0, 1],
        [(7.0, "node 1 came", 0.5), (6.0, "node 0 came", 0.0), (3.0, "node 2 left out", 1.0)],
    )


def test_two_halves_that_both_go_on_are_two_changes(tmp_path):
    write(tmp_path, 0, who(0, 2), view(0.0, 0, range(2)), view(3.0, 2, [0], went=[1], cost=1.0))
    write(tmp_path, 1, who(1, 2), view(0.0, 0, range(2)), view(3.5, 2, [1], went=[0], cost=2.0))
    assert story(tmp_path) == ([1], [(3.5, "node 0 left out", 2.0), (3.0, "node 1 left out", 1.0)])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_change_is_told_once_whoever_hears_of_it(tmp_path, size, seed):
    """Each change at its own second; whoever takes part hears of it within that, and one at least does so."""
    chance = random.Random(seed)
    told = {rank: [view(0.0, 0, range(size))] for rank in range(size)}
    members, expected = set(range(size)), []
    for second in range(1, 31):
        rank = chance.randrange(size)
        before, members = members, members ^ {rank} or members
        came, went = sorted(members - before), sorted(before - members)
        if not (came or went):
            continue
        # One that comes has no view before.
        heard = [(one, chance.random() * 0.9, chance.random()) for one in members if one not in came]
        for one, late, cost in heard:
            told[one].append(view(second + late, second, sorted(members), came, went, cost))
        for one in came:
            told[one].append(view(second + 0.95, second, sorted(members), sorted(members)))
        expected.append((sorted(members), came, went, max(cost for *_, cost in heard)))
    for rank, lines in told.items():
        write(tmp_path, rank, who(rank, size), *lines)
    found = look(tmp_path, now=BEGAN + 40)["view"]
    assert found["members"] == sorted(members)
    known = [(made["members"], made["came"], made["went"], made["waited"]) for made in found["changes"]]
    assert known == expected[::-1][:20]


def test_a_life_keeps_the_last_changes_alone(tmp_path):
    changes = [view(k, k, (0, 1) if k % 2 else (0,), [1] * (k % 2), [1] * (1 - k % 2)) for k in range(1, 500)]
    write(tmp_path, 0, who(0, 2), *changes)
    members, shown = story(tmp_path, now=BEGAN + 600)
    assert members == [0, 1]
    assert [at for at, _, _ in shown] == list(range(499, 479, -1))


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((), ""), ((3,), "3"), ((0, 1), "0, 1"), ((0, 1, 2), "0-2"), ((0, 2, 3, 4, 6, 7, 9), "0, 2-4, 6, 7, 9")],
)
def test_ranks_in_a_row_are_put_together(ranks, words):
    assert _listed(ranks) == words
