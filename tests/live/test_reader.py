"""Journals read while they are written: by bits, with torn ends, at 1, 2 and 3 nodes."""

import json

import pytest
from written import BEGAN, beat, look, reader, who, write

from flockstep.live.reader import Followed, Reader, journals
from flockstep.live.state import state


def test_no_folder_no_file_and_no_line_are_no_run(tmp_path):
    assert journals(tmp_path / "missing") == []
    (tmp_path / "notes.txt").write_text("not a journal")
    (tmp_path / "node-0-0.jsonl").write_text("")
    assert look(tmp_path)["nodes"] == []


def test_journals_are_found_in_order_of_their_numbers(tmp_path):
    for name in ("node-10-0", "node-2-1", "node-2-0", "node-2-10"):
        (tmp_path / f"{name}.jsonl").touch()
    assert [path.stem for path in journals(tmp_path)] == ["node-2-0", "node-2-1", "node-2-10", "node-10-0"]


def test_a_file_read_byte_by_byte_gives_each_line_once(tmp_path):
    path, source = tmp_path / "node-0-0.jsonl", tmp_path / "whole"
    told = [who(0, 1), beat(0.5, sent=[[1, 5]]), {"row": {"loss": 1}}, {"left": {"t": 1.0}}]
    source.write_text("".join(json.dumps(line) + "\n" for line in told))
    path.touch()
    followed, seen = Followed(path), []
    for byte in source.read_bytes():
        with path.open("ab") as file:
            file.write(bytes([byte]))
        seen += followed.new()
    assert seen == told
    assert followed.new() == []


@pytest.mark.parametrize("size", [1, 2, 3])
def test_who_is_here_who_is_done_and_who_is_awaited(tmp_path, size):
    write(tmp_path, 0, who(0, size), beat(9.9, spans=[[0, 0.0, 6.0], [2, 6.0, 8.0]], steps=40), beat(10.0, steps=50))
    assert [node["state"] for node in look(tmp_path)["nodes"]] == ["here", *["awaited"] * (size - 1)]
    for rank in range(1, size):
        write(tmp_path, rank, who(rank, size), beat(9.0), {"left": {"t": 9.5}})
    told = look(tmp_path)
    assert [node["state"] for node in told["nodes"]] == ["here", *["done"] * (size - 1)]
    assert not told["ended"]
    first = told["nodes"][0]
    assert first["steps"] == 50
    assert first["rate"] == pytest.approx(100.0)
    assert first["share"] == {"computing": 0.75, "waiting": 0.0, "talking": 0.25}
    assert told["strategy"] == "Swarm(period=4)"


def test_a_torn_last_line_waits_for_its_rest(tmp_path):
    there = reader(tmp_path)
    path = write(tmp_path, 0, who(0, 1), beat(1.0, sent=[[1, 5]]), {"t": 2.0, "sent": [[1, 7]]}, end="")
    assert there.look()[0].sent == {1: 5}
    with path.open("a") as file:
        file.write("\n")
    assert there.look()[0].sent == {1: 12}


def test_a_line_torn_by_a_crash_is_left_out(tmp_path):
    path = write(tmp_path, 0, who(0, 1), beat(1.0, sent=[[1, 5]]))
    with path.open("a") as file:
        file.write('{"t":2.0,"se\n' + json.dumps(beat(3.0, sent=[[1, 7]])) + "\n")
    life = reader(tmp_path).look()[0]
    assert (life.sent, life.heard) == ({1: 12}, 3.0)


def test_a_dead_process_without_farewell_is_gone_and_the_others_stay(tmp_path):
    for rank in range(3):
        write(tmp_path, rank, who(rank, 3), beat(9.5))
    told = look(tmp_path, dead={2})
    assert [node["state"] for node in told["nodes"]] == ["here", "here", "gone"]
    assert "process 102 is dead" in told["nodes"][2]["why"]
    assert {"at": 9.5, "rank": 2, "what": "gone"} in told["events"]
    assert not told["ended"]
    assert look(tmp_path, dead={0, 1, 2})["ended"]


def test_last_words_written_between_reading_and_looking_count(tmp_path):
    write(tmp_path, 0, who(0, 1), beat(9.5))

    def ends_just_now(pid, born):
        write(tmp_path, 0, {"left": {"t": 9.9}})
        return False

    life = Reader(tmp_path, lives=ends_just_now).look()[0]
    assert life.left == 9.9
    assert state([life], BEGAN + 10)["nodes"][0]["state"] == "done"


def test_a_failure_is_shown_with_its_words(tmp_path):
    write(tmp_path, 0, who(0, 1), {"left": {"t": 3.0, "failure": "Diverged: the loss is nan"}})
    told = look(tmp_path)
    assert (told["nodes"][0]["state"], told["nodes"][0]["why"]) == ("failed", "Diverged: the loss is nan")
    assert told["ended"]
    assert told["seconds"] == 3.0


def test_a_node_of_another_machine_is_gone_when_others_lost_it_and_it_is_silent(tmp_path):
    write(tmp_path, 1, who(1, 2, host="elsewhere"), beat(4.0))
    write(tmp_path, 0, who(0, 2), {"peers": [1], "t": 1.0}, beat(9.0))
    assert look(tmp_path, dead={1})["nodes"][1]["state"] == "silent"
    write(tmp_path, 0, {"peers": [], "t": 9.5})
    node = look(tmp_path)["nodes"][1]
    assert (node["state"], node["why"]) == ("gone", "lost by node 0")
    write(tmp_path, 1, beat(9.8))
    assert look(tmp_path)["nodes"][1]["state"] == "here"


def test_one_that_lives_and_says_nothing_is_silent(tmp_path):
    write(tmp_path, 0, who(0, 1), beat(1.0))
    node = look(tmp_path, now=BEGAN + 31)["nodes"][0]
    assert (node["state"], node["why"]) == ("silent", "no word for 30 s")


def test_a_node_that_begins_anew_is_shown_in_its_new_life(tmp_path):
    write(tmp_path, 0, who(0, 2), beat(9.0))
    write(tmp_path, 1, who(1, 2), beat(2.0, sent=[[0, 10]], spans=[[0, 0.0, 2.0]]))
    write(
        tmp_path,
        1,
        who(1, 2, incarnation=1, began=BEGAN + 5),
        beat(4.5, sent=[[0, 5]], spans=[[0, 0.0, 4.0]]),
        incarnation=1,
    )
    there = Reader(tmp_path, clock=lambda: BEGAN + 10, lives=lambda pid, born: True)
    lives = there.look()
    lives[1].dead = True
    told = state(lives, BEGAN + 10)
    assert (told["nodes"][1]["state"], told["nodes"][1]["incarnation"]) == ("here", 1)
    assert told["matrix"] == [[0, 0], [15, 0]]
    assert [span[2:] for span in told["spans"] if span[0] == 1] == [[0.0, 2.0], [5.0, 9.0]]
    assert [(event["rank"], event["what"]) for event in told["events"]] == [
        (1, "came again"),
        (1, "gone"),
        (0, "came"),
        (1, "came"),
    ]


def test_a_newcomer_beyond_the_size_has_a_place(tmp_path):
    write(tmp_path, 0, who(0, 1), beat(9.0, sent=[[1, 3]]))
    write(tmp_path, 1, who(1, 2), beat(9.5))
    told = look(tmp_path)
    assert [node["state"] for node in told["nodes"]] == ["here", "here"]
    assert told["matrix"] == [[0, 3], [0, 0]]


def test_who_spoke_to_whom_last(tmp_path):
    write(tmp_path, 0, who(0, 3), beat(1.0, sent=[[1, 5], [2, 6]], to=2), beat(4.0, sent=[[1, 5]], to=1))
    write(tmp_path, 1, who(1, 3), beat(9.0, sent=[[2, 1]], to=2))
    told = look(tmp_path)
    assert [(talk["from"], talk["to"], talk["at"], talk["ago"], talk["bytes"]) for talk in told["talks"]] == [
        (1, 2, 9.0, 1.0, 1),
        (0, 1, 4.0, 6.0, 10),
        (0, 2, 1.0, 9.0, 6),
    ]
    assert told["nodes"][0]["last_to"] == 1


def test_only_what_a_window_shows_is_told(tmp_path):
    spans = [[k % 3, k * 0.1, k * 0.1 + 0.09] for k in range(3000)]
    write(tmp_path, 0, who(0, 1), *(beat(spans[k][2], spans=[spans[k]]) for k in range(3000)))
    now = BEGAN + 300
    whole, last = look(tmp_path, now=now), look(tmp_path, now=now, window=5.0)
    assert last["since"] == pytest.approx(295.0)
    assert min(span[2] for span in last["spans"]) == pytest.approx(295.0)
    assert sum(end - begin for _, _, begin, end in last["spans"]) == pytest.approx(50 * 0.09, abs=0.01)
    assert len(whole["spans"]) <= 1200
    assert sum(end - begin for _, _, begin, end in whole["spans"]) == pytest.approx(270.0, rel=1e-3)


def test_losses_are_shown_by_node_first_and_last_included(tmp_path):
    rows = [
        {"row": {"seconds": float(k), "step": k, "loss": 1.0 / (k + 1), "bytes": 0.0, "spread": None}}
        for k in range(5001)
    ]
    write(tmp_path, 1, who(1, 2), *rows)
    told = look(tmp_path)
    assert list(told["rows"]) == ["1"]
    steps = [row["step"] for row in told["rows"]["1"]]
    assert (steps[0], steps[-1]) == (0, 5000)
    assert len(steps) < 1300
    assert told["nodes"][1]["loss"] == pytest.approx(1 / 5001)


def test_between_two_lives_the_losses_have_a_gap(tmp_path):
    row = {"row": {"seconds": 1.0, "step": 1, "loss": 0.5, "bytes": 0.0, "spread": None}}
    write(tmp_path, 0, who(0, 1), row, {"left": {"t": 2.0}})
    write(tmp_path, 0, who(0, 1, incarnation=1, began=BEGAN + 5), row, incarnation=1)
    assert [(row["seconds"], row["loss"]) for row in look(tmp_path)["rows"]["0"]] == [
        (1.0, 0.5),
        (None, None),
        (6.0, 0.5),
    ]
