import itertools
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from scipy import sparse
from sklearn.decomposition import LatentDirichletAllocation
from web_page import Page

from flockstep.lda import LDA
from flockstep.lda.evaluate import distances
from flockstep.lda.evaluate.survey import survey
from flockstep.lda.page.page import write_page

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
    assert [name for name, _ in page.scripts] == ["style", "data", "script"]
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


# Just enough of a browser for the program to run: elements that keep what is put in, and attributes.
BROWSER = """
const element = () => ({ dataset: {}, listeners: {}, attributes: {}, children: [],
  append(...more) { this.children.push(...more); }, replaceChildren(...these) { this.children = these; },
  setAttribute(name, value) { this.attributes[name] = value; },
  addEventListener(kind, handler) { this.listeners[kind] = handler; } });
const known = {};
globalThis.document = {
  documentElement: element(), createElement: element, createElementNS: element, querySelectorAll: () => [],
  getElementById: (id) => (known[id] ??= element()),
};
document.getElementById("data").textContent = require("fs").readFileSync(0, "utf8");
document.getElementById("lambda").value = "1";
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
globalThis.history = { replaceState() {} };
globalThis.location = { hash: "#topic-0" };
require(process.argv[1]);
const radii = () => known["map"].children.filter((c) => c.attributes.r).map((c) => Number(c.attributes.r));
const drawn = [];
const look = () => drawn.push(known["words"].children.map((row) => ({
  word: row.children[1].children[0], inside: Number(row.attributes["data-inside"]),
  overall: Number(row.attributes["data-overall"]) })));
look();
for (const value of ["0", "0.6"]) {
  known["lambda"].value = value;
  known["lambda"].listeners.input();
  look();
}
const before = radii();
known["words"].children[0].listeners.focus();
const during = radii(), says = known["map-says"].textContent;
known["words"].children[0].listeners.blur();
const boxes = known["map"].children.filter((c) => c.attributes.class === "label").map((c) => ({
  x: Number(c.attributes.x), y: Number(c.attributes.y), w: 6.6 * c.children[0].length }));
const options = known["topic"].children.map((option) => Number(option.value));
const groups = known["groups"] ? known["groups"].children.length : 0;
console.log(JSON.stringify({ drawn, before, during, after: radii(), says, boxes, options, groups }));
"""


def run_page(page):
    program = sys.modules["flockstep.lda.page.page"].__file__.replace(".py", ".js")
    [text] = [text for name, text in page.scripts if name == "data"]
    done = subprocess.run(["node", "-e", BROWSER, program], input=text, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


NODE = pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's program")


@NODE
def test_the_slider_ranks_by_relevance(made):
    _, page, _, seen = made
    # From the page's own figures, six digits each: with one topic all words are equally specific, up to their rounding.
    topic = page.told["topics"][0]
    shares = np.array(topic["shares"])
    frequencies = np.array([page.told["frequencies"][word] for word in topic["words"]])
    words = [page.told["words"][word] for word in topic["words"]]
    for weight, shown in zip((1.0, 0.0, 0.6), run_page(page)["drawn"], strict=True):
        relevance = weight * np.log(shares) + (1 - weight) * (np.log(shares) - np.log(frequencies))
        expected = np.argsort(-relevance, kind="stable")[:30]
        assert [row["word"] for row in shown] == [label(words[word]) for word in expected]
        inside, overall = ([row[name] for row in shown] for name in ("inside", "overall"))
        assert inside == pytest.approx(shares[expected] * seen.sizes[0] * seen.tokens, rel=1e-4)
        assert overall == pytest.approx(frequencies[expected] * seen.tokens, rel=1e-4)


@NODE
def test_a_word_shows_where_it_belongs(made):
    told = run_page(made[1])
    assert told["before"] == told["after"]
    assert "belongs: topic" in told["says"]
    if len(told["before"]) > 1:
        assert told["during"] != told["before"]


def assert_apart(boxes):
    for a, b in itertools.combinations(boxes, 2):
        assert abs(a["y"] - b["y"]) >= 14 or a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]


@NODE
def test_topics_come_by_size_and_labels_lie_apart(made):
    page = made[1]
    told = run_page(page)
    sizes = [topic["size"] for topic in page.told["topics"]]
    assert [sizes[k] for k in told["options"]] == sorted(sizes, reverse=True)
    assert told["boxes"]
    assert_apart(told["boxes"])
    rows = [
        int(attributes["data-topic"]) for tag, attributes in page.tags if tag == "tr" and "data-topic" in attributes
    ]
    assert rows == sorted(range(len(sizes)), key=lambda k: -sizes[k])


@NODE
@pytest.mark.slow
def test_labels_of_many_topics_lie_apart(tmp_path):
    rng = np.random.default_rng(0)
    model = LDA(150, max_iter=1, random_state=0).fit(rng.poisson(0.2, (300, 200)))
    told = run_page(Page(write_page(tmp_path / "topics.html", model).read_text(encoding="utf8")))
    assert len(told["boxes"]) > 20
    assert_apart(told["boxes"])


def label(word):
    return word if len(word) <= 24 else word[:23] + "…"


def test_where_words_belong(made):
    _, page, model, seen = made
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    for word, parts in zip(page.told["words"], page.told["wordTopics"], strict=True):
        expected = topics[:, WORDS.index(word)] * seen.sizes
        expected /= expected.sum()
        assert dict(parts) == pytest.approx({k: expected[k] for k, _ in parts}, rel=1e-4)
        assert parts[0][0] == expected.argmax()
        assert [share for _, share in parts] == sorted((share for _, share in parts), reverse=True)


@pytest.mark.slow
def test_a_page_is_small(tmp_path):
    """A hundred topics of texts with long words and snippets."""
    rng = np.random.default_rng(0)
    counts = sparse.csr_array(rng.poisson(0.02, (3000, 5000)).astype(np.float32))
    model = LDA(100, max_iter=1, random_state=0).fit(counts)
    seen = survey(model, counts, typical=20)
    said = dict.fromkeys(range(3000), "word " * 48)
    path = write_page(tmp_path / "t.html", model, [f"longish{w}" for w in range(5000)], survey=seen, snippets=said)
    assert path.stat().st_size < 3e6


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["1999", "2001", "10"], ["10", "1999", "2001"]),
        (["b", "a", ""], ["a", "b"]),
        (
            [f"{1990 + k % 20}-{1 + k // 20 % 12:02d}-{1 + k % 28:02d}" for k in range(300)],
            [str(1990 + k) for k in range(20)],
        ),
        (["2001-02-03", "2001-02-04"], ["2001-02-03", "2001-02-04"]),
    ],
)
def test_topics_by_what_a_column_says(labels, names):
    rng = np.random.default_rng(0)
    labels = [labels[k % len(labels)] for k in range(300)]
    counts = sparse.csr_array(rng.poisson(0.4, (300, 40)))
    model = LDA(3, max_iter=2, random_state=0).fit(counts)
    groups = survey(model, counts, by="when", labels=labels).groups
    assert (groups.by, groups.names) == ("when", names)
    mixtures, lengths = model.transform(counts), np.asarray(counts.sum(1)).ravel()
    for name, shares in zip(names, groups.shares, strict=True):
        chosen = [k for k in range(300) if labels[k].startswith(name)]
        expected = lengths[chosen] @ mixtures[chosen]
        np.testing.assert_allclose(shares, expected / expected.sum(), rtol=1e-6)


@NODE
def test_and_they_are_drawn(tmp_path):
    counts = sparse.csr_array(np.random.default_rng(0).poisson(0.4, (30, 40)))
    model = LDA(3, max_iter=2, random_state=0).fit(counts)
    seen = survey(model, counts, by="<b>when", labels=[f"<i>{k % 4}" for k in range(30)])
    page = Page(write_page(tmp_path / "t.html", model, survey=seen).read_text(encoding="utf8"))
    # A bar and a name for each, and what the largest is.
    assert run_page(page)["groups"] == 2 * 4 + 1


def test_many_values_leave_the_most_frequent_and_one_value_none():
    rng = np.random.default_rng(0)
    counts = sparse.csr_array(rng.poisson(0.4, (300, 40)))
    model = LDA(3, max_iter=2, random_state=0).fit(counts)
    labels = [f"v{min(k, 299 - k) % 100}" for k in range(300)]
    assert len(survey(model, counts, by="x", labels=labels).groups.names) == 60
    assert survey(model, counts, by="x", labels=["same"] * 300).groups is None


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
