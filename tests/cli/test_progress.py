import io
import re

import pytest
from rich.console import Console

from flockstep.cli.support.progress import Plan, Watch
from flockstep.trace import Row


def row(step, loss=1.5):
    return Row(seconds=0.0, step=step, loss=loss, bytes=0.0, spread=0.0)


def test_where_nothing_can_be_redrawn_a_line_is_printed_now_and_then():
    told = io.StringIO()
    with Watch(Console(file=told), [Plan("first", 100), Plan("second", 10)]) as watch:
        on_row = watch.follow(0)
        for step in range(0, 101, 2):
            on_row(row(step))
    lines = told.getvalue().splitlines()
    assert len(lines) == 6
    assert lines[0] == "first: step 0 of 100, loss 1.5"
    assert re.fullmatch(r"first: step 20 of 100, loss 1\.5, .* left", lines[1])
    assert lines[-1] == "first: step 100 of 100, loss 1.5, done"


@pytest.mark.parametrize("ended", [True, False])
def test_on_a_terminal_every_run_has_its_line(ended):
    told = io.StringIO()
    console = Console(file=told, force_terminal=True, width=100, legacy_windows=False, color_system=None)
    with Watch(console, [Plan("first [run]", 100, 4), Plan("second", 10)]) as watch:
        on_row = watch.follow(0)
        for step in (0, 50, 100) if ended else (0, 50):
            on_row(row(step))
        watch.follow(1)(row(0, loss=7.0))
    last = told.getvalue().split("all together")[-2]
    assert re.search(rf"first \[run\].* step {100 if ended else 50}/100 loss 1\.5 took ", last)
    assert re.search(r"second .*step 0/10 +loss 7", last)


def test_the_time_left_of_all_counts_the_gradients_to_come(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("flockstep.cli.support.progress.time.monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), force_terminal=True, width=100, legacy_windows=False)
    watch = Watch(console, [Plan("real", 10), Plan("virtual", 10, 32)])
    on_row = watch.follow(0)
    on_row(row(0))
    now[0] = 5.0
    on_row(row(5))
    # One second per gradient: 5 are left here, and 320 are to come.
    assert watch._bars.tasks[0].fields["due"] == pytest.approx(10.0)
    assert watch._bars.tasks[-1].fields["due"] == pytest.approx(330.0)
