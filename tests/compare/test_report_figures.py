"""The numbers of the report against plain oracles."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from report_samples import comparison, record, rows

from flockstep.compare.folder import Outcome, Results
from flockstep.compare.report import cells, words
from flockstep.compare.report.curves import AXES, curve
from flockstep.compare.report.figures import shares, summaries, target_of, yardstick
from flockstep.compare.report.sheets import write_rows, write_table
from flockstep.trace import NodeReport, Trace

SIZES = [(1, 1, 1), (2, 2, 2), (5, 3, 7)]


def run(losses, seconds=None, *, seed=0, failure=None, nbytes=None, nodes=1):
    reports = [NodeReport(rank, seconds=1.0) for rank in range(nodes)]
    return Outcome(seed, Trace("", rows(losses, seconds, nbytes), reports, {}), failure)


def time_to(rows, target):
    return Trace("", rows, [], {}).time_to(target)


def first_below(seconds, losses, target):
    """By looking very often."""
    moments = np.linspace(seconds[0], seconds[-1], 400_001)
    found = np.flatnonzero(np.interp(moments, seconds, losses) <= target)
    return None if not len(found) else moments[found[0]]


@pytest.mark.parametrize("seed", range(12))
def test_the_time_to_a_target_is_where_the_line_crosses_it(seed):
    rng = np.random.default_rng(seed)
    seconds = np.cumsum(rng.uniform(0.1, 2.0, 9))
    losses = np.linspace(5, 1, 9) + rng.normal(0, 0.8, 9)
    for target in (losses.min() - 1, losses.min(), losses.min() + 0.3, 3.0, losses[0], losses.max() + 1):
        found, expected = time_to(rows(losses, seconds), target), first_below(seconds, losses, target)
        if expected is None:
            assert found is None or math.isclose(found, seconds[losses.argmin()])
        else:
            assert found == pytest.approx(expected, abs=2 * (seconds[-1] - seconds[0]) / 400_000)


def test_times_by_hand():
    falling = rows([4.0, 2.0, 1.0], [0.0, 10.0, 14.0])
    assert time_to(falling, 3.0) == 5.0
    assert time_to(falling, 2.0) == 10.0
    assert time_to(falling, 1.25) == 13.0
    assert time_to(falling, 1.0) == 14.0
    assert time_to(falling, 0.99) is None
    assert time_to(falling, 9.0) == 0.0
    assert time_to(rows([math.nan, 1.0], [0.0, 3.0]), 2.0) == 3.0
    assert time_to(rows([math.inf, 1.0], [0.0, 3.0]), 2.0) == 3.0
    assert time_to([], 1.0) is None


@pytest.mark.parametrize(("strategies", "seeds", "nodes"), SIZES)
def test_a_line_of_the_table_is_the_mean_the_median_and_the_range(strategies, seeds, nodes):
    results = comparison(strategies, seeds, nodes)
    target = 2.0
    lines = summaries(results, target)
    first = None
    for index, line in enumerate(lines):
        runs = results.runs[index]
        last = [run.trace.rows[-1].loss for run in runs]
        times = [
            first_below([row.seconds for row in run.trace.rows], [row.loss for row in run.trace.rows], target)
            for run in runs
        ]
        assert line.loss == pytest.approx(np.mean(last))
        assert line.deviation == (None if seeds == 1 else pytest.approx(np.std(last, ddof=1)))
        assert line.times == pytest.approx(times, abs=1e-3)
        assert line.time == pytest.approx(np.median(times), abs=1e-3)
        first = np.median(times) if index == 0 else first
        assert line.speedup == pytest.approx(first / np.median(times), rel=1e-3)
        assert line.sent == pytest.approx(np.mean([[node.bytes_sent for node in run.trace.nodes] for run in runs]))
        for kind in ("computing", "waiting", "talking"):
            told = [[getattr(node, kind) / (10 + node.rank) for node in run.trace.nodes] for run in runs]
            assert line.shares[kind] == pytest.approx(np.mean(told))
        assert line.failures == []


def test_a_target_that_a_seed_missed_is_not_reached():
    results = Results(
        record(2, 3), [[run([4, 1]), run([4, 3]), run([4, 3.5])], [run([4, 1]), run([4, 2]), run([4, 1])]]
    )
    first, second = summaries(results, 2.5)
    assert first.time is None
    assert " ".join(cells.time(first)) == "not reached (2 of 3 seeds)"
    # The first has no time, and did badly: it is no yardstick, and the second is measured by itself.
    assert first.speedup is None
    assert second.speedup == 1.0
    assert second.time == pytest.approx(0.5)
    assert cells.time(second) == ("500 ms", "500 ms to 750 ms")
    none_asked = summaries(results, None)
    assert cells.time(none_asked[0]) == (cells.NONE, "")


def test_a_baseline_that_did_badly_itself_is_flagged_and_no_yardstick():
    slow, fast, bad = [run([4, 3, 2, 1])], [run([4, 1, 1, 1])], [run([4, 3.9, 3.8, 3.7])]
    well = summaries(Results(record(3, 1), [slow, fast, bad]), 1.5)
    assert yardstick(well).index == 0 and well[1].speedup > 2
    assert "yardstick" not in " ".join(words.findings(well, 1.5))
    badly = summaries(Results(record(3, 1), [bad, slow, fast]), 1.5)
    assert [line.did_well for line in badly] == [False, True, True]
    assert yardstick(badly).index == 1 and badly[1].speedup == 1.0 and badly[2].speedup > 2
    said = words.findings(badly, 1.5)
    assert said[0].startswith(f"{badly[0].label} did badly itself")
    assert f"as fast as {badly[1].label}" in said[1] and f"as fast as {badly[1].label}" in cells.headings(badly)
    # Where nobody did well there is nothing better than the first.
    assert yardstick(summaries(Results(record(1, 1), [[]]), 1.5)).index == 0 and yardstick([]) is None


def test_losses_that_are_not_finite_are_told():
    results = Results(record(1, 3), [[run([4, 1]), run([4, math.inf]), run([4, math.nan], failure="it diverged")]])
    [line] = summaries(results, 2.0)
    assert line.loss is None
    assert " ".join(cells.loss(line)) == "not finite (2 of 3 seeds)"
    assert line.failures == [(0, "it diverged")]


def test_nodes_that_did_nothing_have_no_shares():
    assert shares([]) == {"computing": 0.0, "waiting": 0.0, "talking": 0.0}
    idle, busy = NodeReport(0), NodeReport(1, computing=3.0, waiting=1.0, seconds=4.0)
    assert shares([idle, busy]) == {"computing": 0.75, "waiting": 0.25, "talking": 0.0}


@pytest.mark.parametrize(("strategies", "seeds", "nodes"), SIZES)
def test_the_chosen_target_is_one_that_every_good_run_reaches(strategies, seeds, nodes):
    results = comparison(strategies, seeds, nodes)
    target = target_of(results)
    assert all(line.time is not None for line in summaries(results, target))
    assert target == max(run.trace.loss for line in results.runs for run in line)


def test_which_runs_choose_the_target():
    good, poor, failed = (
        [run([10, 1]), run([10, 1.5])],
        [run([10, 9.5]), run([10, 8])],
        [run([10, 9.5], failure="lost")],
    )
    assert target_of(Results(record(3), [good, poor, failed])) == 1.5
    # The best went down by 9: half of that is enough, less is not.
    assert target_of(Results(record(2), [good, [run([10, 5.4])]])) == 5.4
    assert target_of(Results(record(2), [good, [run([10, 5.6])]])) == 1.5
    assert target_of(Results(record(1), [poor])) == 8
    assert target_of(Results(record(1), [failed])) is None
    assert target_of(Results(record(1, target=0.25), [failed])) == 0.25
    assert target_of(Results(record(1), [[]])) is None


def band(outcomes, place, axis, per_step):
    """The losses of all seeds at one place, one seed after the other."""
    found = []
    for outcome in outcomes:
        known = [row for row in outcome.trace.rows if math.isfinite(row.loss)]
        x = [row.step * per_step if axis == "samples" else getattr(row, axis) for row in known]
        if place < x[0] or (place > x[-1] and outcome.failure):
            continue
        if place >= x[-1]:
            found.append(known[-1].loss)
            continue
        # The last row at or before the place, and the one after.
        left = max(i for i in range(len(x)) if x[i] <= place)
        part = (place - x[left]) / (x[left + 1] - x[left])
        found.append(known[left].loss + part * (known[left + 1].loss - known[left].loss))
    return found


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_bands_are_the_median_and_the_range_over_seeds(axis, seeds):
    results = comparison(1, seeds, 3)
    [outcomes] = results.runs
    # One was ended early, in the middle of the others.
    short = replace(outcomes[-1].trace, rows=outcomes[-1].trace.rows[:7])
    outcomes[-1] = outcomes[-1]._replace(trace=short, failure="lost" if seeds > 1 else None)
    made = curve(outcomes, results.plan, axis)
    per_step = results.plan.samples_per_step
    places = {
        row.step * per_step if axis == "samples" else getattr(row, axis) for run in outcomes for row in run.trace.rows
    }
    assert made.x.tolist() == sorted(places)
    for k, place in enumerate(made.x):
        found = band(outcomes, place, axis, per_step)
        assert (made.low[k], made.middle[k], made.high[k]) == pytest.approx((min(found), np.median(found), max(found)))


def test_of_several_rows_at_one_place_the_last_counts_and_none_is_made_up():
    made = curve([run([4, 3, math.nan, 2], nbytes=[0, 0, 5, 9])], record(1), "bytes")
    assert made.x.tolist() == [0, 9]
    assert made.middle.tolist() == [3, 2]
    assert len(curve([], record(1), "seconds").x) == 0
    assert len(curve([run([math.nan])], record(1), "seconds").x) == 0


def test_more_places_than_pixels_are_thinned_and_keep_both_ends():
    made = curve([run(np.linspace(5, 1, 4321))], record(1), "seconds")
    assert len(made.x) == 1000
    assert (made.x[0], made.x[-1]) == (0, 4320)
    assert made.middle == pytest.approx(5 - made.x / 4320 * 4)


@pytest.mark.parametrize(("strategies", "seeds", "nodes"), SIZES)
def test_the_files_read_back(strategies, seeds, nodes, tmp_path):
    results = comparison(strategies, seeds, nodes)
    lines = summaries(results, 2.0)
    with write_rows(results, tmp_path / "rows.csv").open(encoding="utf8", newline="") as file:
        read = list(csv.DictReader(file))
    every = [(i, run, row) for i, line in enumerate(results.runs) for run in line for row in run.trace.rows]
    assert len(read) == len(every)
    for told, (index, outcome, row) in zip(read, every, strict=True):
        assert (told["strategy"], told["seed"]) == (results.plan.strategies[index], str(outcome.seed))
        numbers = [float(told[name]) for name in ("seconds", "step", "loss", "bytes", "samples")]
        assert numbers == [row.seconds, row.step, row.loss, row.bytes, row.step * 8 * nodes]
    with write_table(lines, 2.0, tmp_path / "table.csv").open(encoding="utf8", newline="") as file:
        table = list(csv.DictReader(file))
    for told, line in zip(table, lines, strict=True):
        assert float(told["loss_mean"]) == line.loss
        assert told["loss_deviation"] == ("" if seeds == 1 else repr(line.deviation))
        assert float(told["seconds_to_target"]) == line.time
        assert float(told["seconds_to_target_least"]) == min(line.times)
        assert float(told["seconds_to_target_most"]) == max(line.times)
        assert float(told["times_as_fast"]) == line.speedup
        assert float(told["share_waiting"]) == line.shares["waiting"]
        assert told["failures"] == ""
