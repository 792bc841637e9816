"""One HTML page to explore topics: their words, sizes, distances and documents. It needs no network.

Words are ranked by relevance (Sievert and Shirley 2014), which a slider weighs,

    relevance = lambda log p(word | topic) + (1 - lambda) log(p(word | topic) / p(word))

and topics lie on a map by Jensen-Shannon distance.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep import pages
from flockstep.lda.evaluate.coherence import top_words
from flockstep.lda.evaluate.distances import distances, plane
from flockstep.lda.evaluate.survey import Survey
from flockstep.lda.words import words_of

_HERE = "flockstep.lda.page"
_SHOWN = 30
# A word that is among the first for no weight of these would be seen nowhere on the slider.
_WEIGHTS = np.linspace(0.0, 1.0, 11)
_NEIGHBORS = 5
_IN_TABLE = 12
_TOPICS_OF_WORD, _LEAST_PART = 8, 0.01


def write_page(
    path: str | Path,
    model: Any,
    vocabulary: Iterable[str] | None = None,
    *,
    survey: Survey | None = None,
    titles: Mapping[int, str] | None = None,
    snippets: Mapping[int, str] | None = None,
    coherence: Iterable[float] | None = None,
    title: str = "Topics",
) -> Path:
    """Write one HTML page to explore topics: their words, sizes, distances and documents. It needs no network.

        relevance = lambda log p(word | topic) + (1 - lambda) log(p(word | topic) / p(word))

    Words are ranked by relevance, lambda by a slider; topics lie on a map by Jensen-Shannon distance.

    Sievert, Shirley: LDAvis, 2014.

    Args:
        path: The file to write.
        model: A fitted topic model: ours, or scikit-learn's.
        vocabulary: The word of every column. None: the names that the model was fitted with, else "word 0", "word 1",
            ...
        survey: What ``flockstep.lda.evaluate.survey.survey`` found in a corpus: it adds documents, and sizes and
            frequencies of that corpus. None: the model's own sizes and frequencies, and no documents.
        titles: What to call a document, by its number in that corpus; "document 7" where it has none. None: none has.
        snippets: How a document begins, by its number. None: nothing.
        coherence: A score for each topic. None: none is shown.
        title: Heading of the page.

    Returns:
        The path.

    Example:
        write_page("topics.html", model, vocabulary, title="My corpus")
    """
    data = _data_of(model, words_of(model, vocabulary), survey, titles or {}, snippets or {}, coherence)
    data["title"] = title
    parts = {
        "TITLE": html.escape(title),
        "ABOUT": html.escape(_about(data, survey)),
        "ROWS": "\n".join(_row(number, data["topics"][number], data["words"]) for number in _by_size(data["topics"])),
        "SCORED": "unscored" if coherence is None else "scored",
        "STYLE": pages.file("look.css") + pages.file("page.css", _HERE),
        "DATA": pages.as_script(data),
        "PROGRAM": pages.file("page.js", _HERE),
    }
    path = Path(path)
    path.write_text(pages.fill(pages.file("page.html", _HERE), parts), encoding="utf8")
    return path


def _data_of(
    model: Any,
    words: list[str],
    survey: Survey | None,
    titles: Mapping[int, str],
    snippets: Mapping[int, str],
    coherence: Iterable[float] | None,
) -> dict[str, Any]:
    """All that the page knows, with each word named once."""
    components = np.asarray(model.components_)
    totals = components.sum(axis=1, dtype=np.float64)
    sizes = totals / totals.sum() if survey is None else survey.sizes
    frequencies = _mixture(components, totals, sizes) if survey is None else survey.frequencies
    apart = distances(components)
    where = plane(apart)
    scores = [None] * len(components) if coherence is None else [_number(score) for score in coherence]
    shown: dict[int, int] = {}
    topics = []
    for k, row in enumerate(components):
        columns, shares = _relevant(row / totals[k], frequencies)
        topics.append(
            {
                "size": _number(sizes[k]),
                "coherence": scores[k],
                "x": _number(where[k, 0]),
                "y": _number(where[k, 1]),
                "words": [shown.setdefault(int(column), len(shown)) for column in columns],
                "shares": [_number(share) for share in shares],
                "near": [[j, _number(apart[k, j])] for j in _nearest(apart[k], k)],
                "documents": [] if survey is None else _documents(survey, k, titles, snippets),
                **_in_groups(survey, k),
            }
        )
    return {
        "wordTopics": [_topics_of(components[:, column], totals, sizes) for column in shown],
        "groups": None
        if survey is None or survey.groups is None
        else {"by": survey.groups.by, "names": survey.groups.names},
        "topics": topics,
        "words": [words[column] for column in shown],
        "frequencies": [_number(frequencies[column]) for column in shown],
        "tokens": None if survey is None else _number(survey.tokens),
        "shown": _SHOWN,
    }


def _by_size(topics: list[dict[str, Any]]) -> list[int]:
    return sorted(range(len(topics)), key=lambda k: -(topics[k]["size"] or 0.0))


def _topics_of(column: NDArray[Any], totals: NDArray[np.float64], sizes: NDArray[np.float64]) -> list[list[Any]]:
    """Where a word belongs: the topics that have most of it, and how much."""
    parts = column / totals * sizes
    parts = parts / parts.sum()
    most = np.argsort(-parts, kind="stable")[:_TOPICS_OF_WORD].tolist()
    return [[k, _number(parts[k])] for k in most if parts[k] >= _LEAST_PART]


def _in_groups(survey: Survey | None, topic: int) -> dict[str, Any]:
    if survey is None or survey.groups is None:
        return {}
    return {"groups": [_number(share) for share in survey.groups.shares[:, topic]]}


def _mixture(components: NDArray[Any], totals: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    mixture: NDArray[np.float64] = (sizes / totals) @ components
    return mixture


def _relevant(
    shares: NDArray[np.float64], frequencies: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The words that are among the first of a topic for some weight, likeliest first. A word never seen is none."""
    seen = np.flatnonzero((frequencies > 0) & (shares > 0))
    likely = np.log(shares[seen])
    lift = likely - np.log(frequencies[seen])
    found: set[int] = set()
    if len(seen):
        for weight in _WEIGHTS:
            found.update(seen[top_words((weight * likely + (1 - weight) * lift)[None], _SHOWN)[0]].tolist())
    columns = np.array(sorted(found, key=lambda column: (-shares[column], column)), dtype=np.int64)
    return columns, shares[columns]


def _nearest(apart: NDArray[np.float64], topic: int) -> list[int]:
    return [other for other in np.argsort(apart, kind="stable").tolist() if other != topic][:_NEIGHBORS]


def _documents(survey: Survey, topic: int, titles: Mapping[int, str], snippets: Mapping[int, str]) -> list[Any]:
    return [
        {
            "title": titles.get(number, f"document {number}"),
            "snippet": snippets.get(number, ""),
            "share": _number(share),
        }
        for number, share in zip(survey.typical[topic].tolist(), survey.shares[topic].tolist(), strict=True)
        if share >= 0
    ]


def _about(data: dict[str, Any], survey: Survey | None) -> str:
    of = f"{len(data['topics'])} topics"
    return of if survey is None else f"{of} of {survey.documents:,} documents, {survey.tokens:,.0f} words in all"


def _row(number: int, topic: dict[str, Any], words: list[str]) -> str:
    """A line of the table, which is there without a script too."""
    named = html.escape(", ".join(words[word] for word in topic["words"][:_IN_TABLE]))
    score = "" if topic["coherence"] is None else f"{topic['coherence']:.3f}"
    return (
        f'<tr data-topic="{number}"><td>{number}</td><td>{topic["size"]:.2%}</td><td>{score}</td><td>{named}</td></tr>'
    )


def _number(value: float) -> float | None:
    """Six digits are more than anybody sees; JSON has no nan."""
    return float(f"{value:.6g}") if np.isfinite(value) else None
