import html
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")
pytest.importorskip("plotly")

from scipy import sparse
from sklearn.decomposition import LatentDirichletAllocation
from web_page import Page

from flockstep.lda import distances
from flockstep.lda.page import write_page
from flockstep.lda.survey import survey

EVIL = [
    "<script>alert(1)</script>",
    "</script><b>",
    '"><img src=x onerror=alert(2)>',
    "a&b",
    "@@DATA@@",
    "\u2028",
    "<!--",
]
WORDS = EVIL + [f"w{i}" for i in range(40)]


@pytest.fixture(scope="module", params=[1, 2, 7])
def made(request, tmp_path_factory):
    rng = np.random.default_rng(0)
    counts = sparse.csr_matrix(rng.poisson(0.4, (30, len(WORDS))))
    model = LatentDirichletAllocation(n_components=request.param, random_state=0).fit(counts)
    seen = survey(model, counts)
    path = write_page(
        tmp_path_factory.mktemp("page") / "topics.html",
        model,
        WORDS,
        survey=seen,
        titles={number: f"<b>title {number}</b>" for number in range(30)},
        snippets={number: f"</script><i>snippet {number}" for number in range(30)},
        coherence=[0.25, *[float("nan")] * (request.param - 1)],
        title="Topics <of> @@DATA@@",
    )
    return path, Page(path.read_text(encoding="utf8")), model, seen


def test_nothing_is_loaded_from_anywhere(made):
    made[1].check_alone()


def test_what_a_corpus_holds_is_text_and_never_markup(made):
    _, page, model, _ = made
    assert [name for name, _ in page.scripts] == ["style", "script", "data", "script"]
    assert not {"b", "i", "img"} & {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    named = "".join(page.words)
    best = WORDS[model.components_[0].argmax()]
    assert best in named
    assert set(EVIL) <= set(page.told["words"])
    assert page.told["topics"][0]["documents"][0]["title"].startswith("<b>title ")
    assert page.told["topics"][0]["documents"][0]["snippet"].startswith("</script><i>snippet ")
    assert "Topics <of> @@DATA@@" in page.words


def test_the_numbers_are_the_models(made):
    _, page, model, seen = made
    told = page.told
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    apart = distances.distances(model.components_)
    assert len(told["topics"]) == len(topics)
    for k, topic in enumerate(told["topics"]):
        assert topic["size"] == pytest.approx(seen.sizes[k], rel=1e-5)
        columns = [WORDS.index(told["words"][word]) for word in topic["words"]]
        assert topic["shares"] == pytest.approx(topics[k, columns], rel=1e-5)
        assert columns[:5] == np.argsort(-topics[k], kind="stable")[:5].tolist()
        assert [share for *_, share in map(dict.values, topic["documents"])] == pytest.approx(seen.shares[k], rel=1e-5)
        for other, distance in topic["near"]:
            assert distance == pytest.approx(apart[k, other], rel=1e-4)
        assert len(topic["near"]) == min(5, len(topics) - 1)
    for word, frequency in zip(told["words"], told["frequencies"], strict=True):
        assert frequency == pytest.approx(seen.frequencies[WORDS.index(word)], rel=1e-5)
    assert [topic["coherence"] for topic in told["topics"]] == [0.25, *[None] * (len(topics) - 1)]
    assert f"{seen.sizes[0]:.2%}" in page.words


def test_words_of_every_weight_are_there(made):
    _, page, model, seen = made
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    for k, topic in enumerate(page.told["topics"]):
        named = {WORDS.index(page.told["words"][word]) for word in topic["words"]}
        for weight in (0.0, 0.6, 1.0):
            relevance = weight * np.log(topics[k]) + (1 - weight) * np.log(topics[k] / seen.frequencies)
            assert set(np.argsort(-relevance, kind="stable")[:30].tolist()) <= named


# Just enough of a browser for the program to run: elements that take what is put in, and a plotting library that tells.
BROWSER = """
const element = () => ({ dataset: {}, listeners: {}, append() {}, replaceChildren() {}, setAttribute() {}, on() {},
  addEventListener(kind, handler) { this.listeners[kind] = handler; } });
const known = {};
globalThis.document = {
  documentElement: element(), createElement: element, querySelectorAll: () => [],
  getElementById: (id) => (known[id] ??= element()),
};
document.getElementById("data").textContent = require("fs").readFileSync(0, "utf8");
document.getElementById("lambda").value = "1";
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#123456" });
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
globalThis.history = { replaceState() {} };
globalThis.location = { hash: "" };
const drawn = [];
globalThis.Plotly = { react: (where, traces, layout) => { if (where === "words") drawn.push([traces, layout]); } };
require(process.argv[1]);
for (const value of ["0", "0.6"]) {
  known["lambda"].value = value;
  known["lambda"].listeners.input();
}
console.log(JSON.stringify(drawn.map(([traces, layout]) =>
  ({ words: layout.yaxis.ticktext, overall: traces[0].x, inside: traces[1].x }))));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's program")
def test_the_slider_ranks_by_relevance(made):
    _, page, _, seen = made
    program = sys.modules["flockstep.lda.page"].__file__.replace(".py", ".js")
    [text] = [text for name, text in page.scripts if name == "data"]
    done = subprocess.run(["node", "-e", BROWSER, program], input=text, capture_output=True, text=True, check=True)
    # From the page's own figures, six digits each: with one topic all words are equally specific, up to their rounding.
    topic = page.told["topics"][0]
    shares = np.array(topic["shares"])
    frequencies = np.array([page.told["frequencies"][word] for word in topic["words"]])
    words = [page.told["words"][word] for word in topic["words"]]
    for weight, shown in zip((1.0, 0.0, 0.6), json.loads(done.stdout), strict=True):
        relevance = weight * np.log(shares) + (1 - weight) * (np.log(shares) - np.log(frequencies))
        expected = np.argsort(-relevance, kind="stable")[:30]
        assert shown["words"][::-1] == [label(words[word]) for word in expected]
        assert shown["inside"][::-1] == pytest.approx(shares[expected] * seen.sizes[0] * seen.tokens, rel=1e-4)
        assert shown["overall"][::-1] == pytest.approx(frequencies[expected] * seen.tokens, rel=1e-4)


def label(word):
    """Short, and without markup for the plotting library."""
    return html.escape(word if len(word) <= 24 else word[:23] + "…", quote=False)


def test_without_a_corpus_sizes_are_the_models_own(tmp_path):
    counts = sparse.csr_matrix(np.random.default_rng(0).poisson(0.4, (30, 12)))
    model = LatentDirichletAllocation(n_components=3, random_state=0).fit(counts)
    told = Page(write_page(tmp_path / "topics.html", model).read_text(encoding="utf8")).told
    sums = model.components_.sum(axis=1)
    assert [topic["size"] for topic in told["topics"]] == pytest.approx(sums / sums.sum(), rel=1e-5)
    assert dict(zip(told["words"], told["frequencies"], strict=True)) == pytest.approx(
        {f"word {w}": share for w, share in enumerate(model.components_.sum(axis=0) / sums.sum())}, rel=1e-5
    )
    assert told["tokens"] is None
    assert all(topic["documents"] == [] for topic in told["topics"])


def test_without_plotly_there_is_a_line_to_type(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape('pip install "flockstep[lda]"')):
        write_page(tmp_path / "topics.html", None)
    assert not (tmp_path / "topics.html").exists()
