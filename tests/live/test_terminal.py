"""The table where no browser is at hand."""

import io

from rich.console import Console
from written import beat, reader, who, write
from written import view as takes_part

from flockstep.live.state import state
from flockstep.live.terminal import view


def shown(folder, dead=(), width=80):
    console = Console(file=io.StringIO(), width=width)
    there = reader(folder, dead)
    console.print(view(state(there.look(), there.clock()), str(folder)))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_no_run_yet(tmp_path):
    assert "Waiting for a run" in shown(tmp_path, width=200)


def test_each_node_has_a_line_and_one_that_is_gone_says_so_in_words(tmp_path):
    told = {"t": 9.9, "spans": [[0, 0.0, 6.0], [2, 6.0, 8.0]], "sent": [[1, 2_500_000]], "to": 1, "steps": 1234}
    write(tmp_path, 0, who(0, 4), told)
    write(tmp_path, 1, who(1, 4), beat(9.9))
    write(tmp_path, 2, who(2, 4), beat(4.0))
    words = shown(tmp_path, dead={2})
    assert "Swarm(period=4), running for 10 s" in words
    lines = {line.split()[0]: line.split() for line in words.splitlines() if line[:5].strip().isdigit()}
    assert lines["0"][1:] == ["here", "1234", "0", "75/0/25", "%", "2.5", "MB", "1"]
    assert lines["2"][1] == "GONE"
    assert lines["3"] == ["3", "awaited"]
    assert "Node 2 gone: its process 102 is dead" in words
    assert "4.0 s  node 2 gone" in words
    assert "…" not in words


def test_in_an_elastic_run_it_says_who_takes_part(tmp_path):
    for rank in range(3):
        write(tmp_path, rank, who(rank, 3), takes_part(0.0, 0, range(3)), beat(9.9))
    assert "Taking part: 0-2 (3 of 3 nodes)." in shown(tmp_path)
    for number in range(1, 7):
        write(tmp_path, 0, takes_part(number, 2 * number, (0, 2), went=(1,), cost=1.25))
        write(tmp_path, 0, takes_part(number + 0.5, 2 * number + 1, (0, 1, 2), came=(1,)))
    words = [line.rstrip() for line in shown(tmp_path).splitlines()]
    assert "     6.0 s  node 1 left out; 2 take part (waited 1.2 s)" in words
    assert "     6.5 s  node 1 came; 3 take part (waited 0.0 s)" in words
    assert sum("take part (" in line for line in words) == 5
    for rank in range(3):
        write(tmp_path, rank, {"left": {"t": 9.95}})
    assert "Took part last: 0-2 (3 of 3 nodes)." in shown(tmp_path)


def test_a_plain_run_says_nothing_of_it(tmp_path):
    write(tmp_path, 0, who(0, 1), beat(9.9))
    assert " part" not in shown(tmp_path)


def test_nodes_that_drift_apart_are_told_of(tmp_path):
    def row(k, spread):
        return {"row": {"seconds": 0.1 * k, "step": k, "loss": 2 - 0.1 * k, "bytes": 0.0, "spread": spread}}

    write(tmp_path, 0, who(0, 1), *(row(k, None) for k in range(3)), *(row(k, 2.0**k) for k in range(3, 15)), beat(9.9))
    words = " ".join(shown(tmp_path, width=300).split())
    assert "running for 10 s, spread 1.64e+04" in words
    assert "Attention: the nodes drift apart" in words
    write(tmp_path, 1, who(1, 2), *(row(k, 0.5) for k in range(20, 40)), beat(9.9))
    words = " ".join(shown(tmp_path, width=300).split())
    assert ", spread 0.5 " in words and "drift" not in words
