"""What a node tells is in its file a moment later, and in its memory no more."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import threading

import pytest

from flockstep.live import journal as journals
from flockstep.live import lines, open_journal
from flockstep.live.reader import Reader
from flockstep.trace import NodeReport, Row, ViewChange

ROW = Row(seconds=1.5, step=10, loss=0.25, bytes=100.0, spread=math.nan)


def written(journal):
    return [json.loads(line) for line in journal.path.read_text().splitlines()]


def until(look):
    """Whatever the journal's own thread writes; it does so a few times a second."""
    waiting = threading.Event()
    while not (seen := look()):
        waiting.wait(0.01)
    return seen


def test_the_first_line_says_who(tmp_path):
    journal = open_journal(tmp_path / "made" / "for it", rank=1, size=3, strategy="Swarm(period=4)")
    journal.close()
    who = written(journal)[0]["who"]
    assert journal.path.name == "node-1-0.jsonl"
    assert (who["rank"], who["size"], who["incarnation"]) == (1, 3, 0)
    assert (who["strategy"], who["pid"]) == ("Swarm(period=4)", os.getpid())


def test_everything_told_is_written_in_order_and_the_last_line_is_left(tmp_path):
    journal = open_journal(tmp_path, rank=0, size=2, strategy="S")
    tally = NodeReport(0, steps=7)
    journal.follow(tally)
    journal.spend(0, "computing", 0.0, 1.0)
    journal.spend(0, "computing", 1.0, 2.0)  # without a gap: one span
    journal.spend(0, "talking", 2.5, 2.5)  # nothing
    journal.spend(0, "talking", 2.5, 3.0)
    for _ in range(3):
        journal.send(0, 1, 100)
    journal.row(ROW)
    journal.peers([1])
    journal.peers((1,))
    journal.close()
    journal.close()
    told = written(journal)
    beats = [line for line in told if "spans" in line or "sent" in line]
    spans = [span for beat in beats for span in beat.get("spans", ())]
    assert [kind for kind, _, _ in spans] == [0, 2]
    assert [round(end - begin, 5) for _, begin, end in spans] == [2.0, 0.5]
    assert spans[1][1] - spans[0][2] == pytest.approx(0.5)
    assert sum(nbytes for beat in beats for _, nbytes in beat.get("sent", ())) == 300
    assert [line["steps"] for line in told if "steps" in line] == [7]
    assert [line["row"] for line in told if "row" in line] == [
        {"seconds": 1.5, "step": 10, "loss": 0.25, "bytes": 100.0, "spread": None}
    ]
    assert [line["peers"] for line in told if "peers" in line] == [[1]]
    assert list(told[-1]) == ["left"]
    assert "failure" not in told[-1]["left"]


def test_who_takes_part_is_told_and_read_again(tmp_path):
    journal = open_journal(tmp_path, rank=0, size=3, strategy="S")
    told = [ViewChange((0, 1, 2), (), (), 0.0), ViewChange((0, 2), (), (1,), 1.25, seconds=99.0, number=4)]
    for change in told:
        journal.view(change)
    journal.close()
    life = Reader(tmp_path).look()[0]
    assert [dataclasses.replace(change, seconds=0.0) for change in life.views] == [
        dataclasses.replace(change, seconds=0.0) for change in told
    ]
    # By the journal's own clock, which does not stop with the node's.
    assert [change.seconds for change in life.views] == [line["t"] for line in written(journal) if "view" in line]
    assert life.living == (2,)


def test_a_failure_is_told(tmp_path):
    journal = open_journal(tmp_path, rank=0, size=1, strategy="S")
    journal.close(ValueError("no such thing"))
    assert written(journal)[-1]["left"]["failure"] == "ValueError: no such thing"


def test_what_is_written_is_no_longer_in_memory(tmp_path):
    journal = open_journal(tmp_path, rank=0, size=1, strategy="S")
    try:
        journal.spend(0, "waiting", 0.0, 1.0)
        until(lambda: any("spans" in line for line in written(journal)))
        assert journal.spans == []
    finally:
        journal.close()


@pytest.mark.slow
def test_memory_is_bounded_where_nobody_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "BEAT", 3600.0)
    journal = open_journal(tmp_path, rank=0, size=1, strategy="S")
    count = 20_000
    for k in range(count):
        journal.spend(0, ("computing", "talking")[k % 2], k * 1e-3, (k + 0.5) * 1e-3)
    assert len(journal.spans) <= 4096
    journal.close()
    spans = [span for line in written(journal) for span in line.get("spans", ())]
    assert sum(end - begin for _, begin, end in spans) == pytest.approx(count * 0.5e-3, rel=1e-3)


def test_a_second_life_has_a_file_of_its_own(tmp_path):
    first = open_journal(tmp_path, rank=2, size=3, strategy="S")
    second = open_journal(tmp_path, rank=2, size=3, strategy="S")
    first.close()
    second.close()
    assert second.path.name == "node-2-1.jsonl"
    assert written(second)[0]["who"]["incarnation"] == 1


def test_a_long_journal_is_made_short_and_reads_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "BEAT", 3600.0)
    monkeypatch.setattr(journals, "_LONGEST", 20_000)
    monkeypatch.setattr(lines, "_SPANS", 100)
    journal = open_journal(tmp_path, rank=0, size=2, strategy="S")
    reader = Reader(tmp_path)
    for k in range(2000):
        journal.spend(0, ("computing", "talking")[k % 2], k * 0.1, k * 0.1 + 0.05)
        journal.send(0, 1, 10)
        if k % 500 == 0:
            journal.row(Row(float(k), k, 1.0 / (k + 1), 0.0, 0.0))
            journal.view(ViewChange((0, 1), (1,), (), 0.5, number=k))
            reader.look()
        if k % 20 == 0:
            journal._write()
    journal.close()
    assert written(journal)[0]["who"]["shortened"] >= 1
    for life in (*reader.look(), *Reader(tmp_path).look()):
        assert life.sent == {1: 20_000}
        assert life.seconds["computing"] == pytest.approx(50.0, rel=1e-3)
        assert [row["step"] for row in life.rows] == list(range(0, 2000, 500))
        assert {change.number for change in life.views} == set(range(0, 2000, 500))
        assert life.left is not None
    assert len(lines.decode(journal.path.read_bytes())) < 2000 / 20


def test_a_disk_that_is_full_ends_the_journal_and_not_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "BEAT", 3600.0)
    journal = open_journal(tmp_path, rank=0, size=1, strategy="S")

    def full(file, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lines, "write", full)
    journal.row(ROW)
    with pytest.warns(RuntimeWarning, match="ends here: .*No space left"):
        journal._write()
    journal.spend(0, "computing", 0.0, 1.0)
    journal.row(ROW)
    journal.close()


KILLED = """
import os, sys, threading
from flockstep.live import open_journal
journal = open_journal(sys.argv[1], rank=0, size=1, strategy="S")
journal.spend(0, "computing", 0.0, 1.0)
journal.send(0, 1, 42)
print("told", flush=True)
threading.Event().wait()  # as a node that computes for a long time
"""


@pytest.mark.slow
def test_what_was_told_before_a_kill_is_on_file(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "told\n"
        reader = Reader(tmp_path)
        life = until(lambda: [life for life in reader.look() if life.sent])[0]
        assert (life.sent, life.seconds["computing"], life.over) == ({1: 42}, pytest.approx(1.0), False)
        child.send_signal(signal.SIGKILL)
        until(lambda: reader.look()[0].dead)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert reader.look()[0].left is None
