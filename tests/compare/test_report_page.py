"""The page's text: what it tells, that nothing a user wrote becomes markup, and that equal results give equal pages."""

import itertools
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from report_samples import comparison, record, rows, timeline
from web_page import Page

pytest.importorskip("plotly")

from matplotlib.image import imread

from flockstep import pages
from flockstep.compare import report
from flockstep.compare.folder import Outcome, Results
from flockstep.compare.report import words
from flockstep.compare.report.figures import summaries, target_of
from flockstep.compare.report.packed import LETTERS, pack, pairs
from flockstep.compare.report.page import page as page_of
from flockstep.compare.report.picture import draw
from flockstep.timeline import KINDS, Timeline
from flockstep.trace import NodeReport, Trace

EVIL = [
    "<script>alert(1)</script>",
    "</script><b>",
    '"><img src=x onerror=alert(2)>',
    "a&b $x^2$",
    "@@DATA@@",
    "\u2028<!--",
]


def written(results):
    target = target_of(results)
    return Page(page_of(results, summaries(results, target), target))


def evil(results):
    """The same with everything that a user may write turned against the page."""
    plan, names = results.plan, (EVIL * 2)[: len(results.plan.labels)]
    changed = {"labels": names, "strategies": names, "optimizers": names, "workload": EVIL[0], "command": EVIL[1]}
    cluster = {**plan.cluster, "link": EVIL[2], "faults": EVIL, "stragglers": EVIL}
    failing = [[run._replace(failure=EVIL[2]) for run in line] for line in results.runs]
    return Results(replace(plan, **changed, cluster=cluster, versions={EVIL[0]: EVIL[1]}), failing)


@pytest.fixture(scope="module", params=[(1, 1, 1), (2, 2, 2), (9, 3, 5)], ids=str)
def made(request):
    results = comparison(*request.param)
    return results, written(results)


def test_nothing_is_loaded_from_anywhere(made):
    _, page = made
    assert "unsafe-eval" not in page.check_alone()


def test_ids_are_given_once_and_controls_have_names(made):
    _, page = made
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        assert set(attributes.get("aria-labelledby", "").split()) <= set(ids)


def test_the_table_tells_the_figures(made):
    results, page = made
    lines = summaries(results, target_of(results))
    head, *body = page.told_table
    assert head == [
        "strategy",
        "final loss",
        "time to target",
        f"times as fast as {lines[0].label}",
        "bytes per node",
        "spread",
        *KINDS,
        "failures",
    ]
    assert len(body) == len(lines)
    for line, told in zip(lines, body, strict=True):
        assert told[0].split()[0] == line.label
        assert told[1].split()[0] == f"{line.loss:.4g}"
        assert ("±" in told[1]) == (len(results.plan.seeds) > 1)
        assert float(told[3].rstrip("×")) == pytest.approx(line.speedup, rel=0.01)
        assert told[5] == f"{line.spread:.3g}"
        assert told[6:9] == [f"{line.shares[kind]:.0%}" for kind in KINDS]
        assert told[9] == "none"
    keys = [a["data-value"] for tag, a in page.tags if tag == "td"]
    assert [float(key) for key in keys[1::10]] == [line.loss for line in lines]


def test_the_page_knows_command_versions_and_seeds(made):
    results, page = made
    for text in (results.plan.command, "flockstep 0.1.0, torch 2.13.0, python 3.11.2"):
        assert text in page.words
    assert ", ".join(map(str, results.plan.seeds)) in page.words
    assert any("straight line between" in text for text in page.words)


def unpacked(packed):
    """The spans of each node, in seconds."""
    found = []
    for rank, lane in enumerate(packed["lanes"]):
        edges = np.cumsum(lane["times"]) * packed["tick"]
        kinds = [{letter: kind for kind, letter in LETTERS.items()}[letter] for letter in lane["kinds"]]
        found += [(rank, kind, edges[2 * i], edges[2 * i + 1]) for i, kind in enumerate(kinds)]
    return found


@pytest.mark.parametrize("nodes", [1, 2, 7])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_a_packed_timeline_is_the_timeline(nodes, scale):
    told = timeline(np.random.default_rng(nodes), nodes, spans=300, mean=scale)
    packed = pack(told, nodes)
    spans = [span for rank in range(nodes) for span in told.of(rank)]
    found = unpacked(packed)
    assert [(rank, kind) for rank, kind, *_ in found] == [(span.rank, span.kind) for span in spans]
    assert np.array([times for _, _, *times in found]) == pytest.approx(
        np.array([[span.begin, span.end] for span in spans]), abs=0.51 * packed["tick"]
    )
    assert packed["tick"] <= 1e-7 * packed["seconds"]
    assert packed["seconds"] == pytest.approx(max(span.end for span in spans))
    matrix = np.zeros((nodes, nodes), dtype=int)
    for rank, peer, count in pairs(told, nodes)["sent"]:
        matrix[rank, peer] = count
    assert matrix.tolist() == told.matrix(nodes)


def test_a_node_that_did_nothing_has_an_empty_lane():
    assert pack(Timeline(), 2) == {"tick": 1.0, "seconds": 0.0, "lanes": [{"kinds": "", "times": []}] * 2}


def test_what_a_user_wrote_is_text():
    page = written(evil(comparison(9, 2, 3)))
    assert [name for name, _ in page.scripts] == ["style", "script", "script", "data", "script"]
    assert not {"b", "i", "img"} & {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert [strategy["label"] for strategy in page.told["strategies"]] == (EVIL * 2)[:9]
    assert any(EVIL[0] in text for text in page.words)
    assert any(EVIL[4] in text for text in page.words)


@pytest.mark.slow
def test_equal_results_give_equal_files(tmp_path):
    for name in ("one", "other"):
        report.write(comparison(3, 2, 4), tmp_path / name)
    for name in ("report.html", "report.png", "rows.csv", "table.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


@pytest.mark.slow
def test_the_picture_shows_every_strategy_in_its_color_whatever_it_is_called(tmp_path):
    path = draw(evil(comparison(3, 3, 2)), 2.0, tmp_path / "report.png")
    seen = (imread(path)[..., :3] * 255).round()
    for shade in pages.colors()[:3]:
        assert (seen == [int(shade[at : at + 2], 16) for at in (1, 3, 5)]).all(axis=-1).any()


def test_a_comparison_of_which_little_is_there():
    bare = Outcome(0, Trace("", [], [NodeReport(0)], {}), "it never began")
    lost = Outcome(0, Trace("", rows([3.0, float("nan")]), [NodeReport(0, seconds=1.0)], {}), "it diverged")
    page = written(Results(record(4, 2, 1), [[bare], [], [lost], comparison(1, 2, 1).runs[0]]))
    body = page.told_table[1:]
    assert body[0][1:3] == ["–", "not reached (1 of 1 seeds)"]
    assert "1 of 2 seeds" in body[0][9]
    assert "it never began" in body[0][9]
    assert body[1][9] == "2 not run"
    assert body[2][1] == "not finite (1 of 1 seeds)"
    assert page.told["timelines"][:3] == [None] * 3
    assert page.told["losses"]["seconds"][0]["x"] == []
    nothing = written(Results(record(1, 1, 1), [[]]))
    assert any("no target" in text for text in nothing.words)


@pytest.mark.slow
def test_without_plotly_there_is_a_line_to_type_and_the_other_files(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape('pip install "flockstep[compare]"')):
        report.write(comparison(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.png", "rows.csv", "table.csv"]


def test_a_cluster_in_words():
    assert words.title(record(1, nodes=1)) == "Training quadratics on 1 virtual node"
    assert words.title(record(real=True)) == "Training quadratics on 4 real nodes"
    assert words.cluster(record()) == (
        "100 Mbit/s links, 20 ms latency, 50 ms per gradient, node 1 is 4 times slower; 60 steps per node, 3 seeds"
    )
    real = {"nodes": 2, "link": "1 Gbit/s", "links": "1 Gbit/s links between network namespaces"}
    assert words.cluster(record(seeds=1, real=True, cluster=real, steps=0)) == f"{real['links']}; 1 seed"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("crash 5@60s", "node 5 crashes after 60s"),
        ("crash 5@60s+30s", "node 5 crashes after 60s, is back 30s later"),
        ("pause 2@10s+5s", "node 2 pauses after 10s for 5s"),
        ("slowdown 3:4x@60s+30s", "node 3 is 4 times slower after 60s for 30s"),
        ("partition 0,1|2,3@10s+5s", "nodes 0,1 are cut off from 2,3 after 10s for 5s"),
        ("loss 0.05", "loss 0.05"),
    ],
)
def test_faults_in_words(text, told):
    assert words.fault(text) == told


def test_findings_name_the_fastest_and_the_least():
    results = comparison(3, 3, 4)
    lines = summaries(results, 2.0)
    fastest, least = min(lines, key=lambda line: line.time), min(lines, key=lambda line: line.sent)
    fast, few = words.findings(lines, 2.0)
    assert fast.startswith(f"Fastest to a loss of 2: {fastest.label}, in ")
    assert f"{fastest.speedup:.3g} times as fast as {lines[0].label}" in fast
    assert few.startswith(f"Fewest bytes: {least.label}, ")
    assert words.findings(lines[:1], None) == []


# How linear light looks to eyes without one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1).
EYES = {
    "all cones": np.eye(3),
    "no long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no middle": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(shade, eyes):
    """CIE L*a*b* of an sRGB color."""
    light = np.array([int(shade[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    light = np.where(light <= 0.04045, light / 12.92, ((light + 0.055) / 1.055) ** 2.4)
    light = np.clip(np.array(eyes) @ light, 0, 1)
    xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]] @ light / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("theme", [0, 1])
def test_every_eye_can_tell_the_colors_apart(theme, eyes):
    palette = re.findall(r"--s\d+: (#\w{6})", pages.file("look.css").split("}")[theme])
    assert len(palette) == 8
    # Ten is where two colors are seen to differ at a glance.
    for one, other in itertools.combinations(palette, 2):
        assert np.linalg.norm(lab(one, EYES[eyes]) - lab(other, EYES[eyes])) > 10, (one, other)


def test_nodes_that_drift_apart_are_told_of_in_table_and_findings():
    apart = [replace(row, spread=math.exp(step)) for step, row in enumerate(rows([3.0 - 0.1 * k for k in range(12)]))]
    outcome = Outcome(0, Trace("", apart, [NodeReport(0, seconds=1.0)], {}), None)
    page = written(Results(record(1, 1, 1), [[outcome]]))
    assert page.told_table[1][5] == f"{math.exp(11):.3g} drifting apart"
    assert any("the nodes drift apart" in text for text in page.words)
