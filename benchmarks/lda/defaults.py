"""Topic models as they come: everybody's defaults, on four corpora.

Messages, paragraphs, sentences of three words, speeches of plays; 20 and 100 topics; three seeds. Ours, scikit-learn
online and batch, gensim with one pass and ten, tomotopy with 200 and 1,000 iterations, each with nothing but the number
of topics and a seed; and no topics at all, but word frequencies. One evaluator for all: words of one half of a held-out
document foreseen from the other half, with each model's own topics and prior of documents; how well the ten likeliest
words of topics go together in the training documents (NPMI); processor seconds of training, one thread each. Every cell
is kept as it is done, and a run that is started again leaves out what is there. Ours is not untouched by them: when to
draw topics, and the bounds of the learned prior, were chosen on the two corpora of short texts, the size of batches on
all four.

Bars, for every corpus and number of topics: perplexity at most 1.01 of the best peer's; NPMI at least tomotopy's
(1,000 iterations) in most; no peer that is as good within 4 times our seconds.
"""

from __future__ import annotations

import csv
import itertools
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lda.texts import CORPORA
from benchmarks.pool import run_all
from benchmarks.report import Progress, arguments, finish, keep
from flockstep.lda import LDA
from flockstep.lda.evaluate import coherence
from flockstep.lda.evaluate.completion import Completion

NAME = "benchmarks.lda.defaults"
FILE = "lda_defaults"
RESULTS = Path(__file__).parents[1] / "results"
NONE, OURS = "no topics", "flockstep"
Fitted = tuple[NDArray[Any], Any]
"""Topics by words, and the prior of documents."""


def ours(train: Any, topics: int, seed: int) -> Fitted:
    """With nothing but topics and seed."""
    model = LDA(topics, random_state=seed).fit(train)
    return model.components_, model.doc_topic_prior_


def scikit_learn(train: Any, topics: int, seed: int, method: str) -> Fitted:
    """Ten passes, as it comes."""
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(topics, learning_method=method, random_state=seed).fit(train)
    return model.components_, model.doc_topic_prior_


def gensim(train: Any, topics: int, seed: int, passes: int) -> Fitted:
    """LdaModel."""
    from gensim.matutils import Sparse2Corpus
    from gensim.models import LdaModel

    names = {word: str(word) for word in range(train.shape[1])}
    bags = Sparse2Corpus(train, documents_columns=False)
    model = LdaModel(bags, num_topics=topics, id2word=names, passes=passes, random_state=seed)
    return model.get_topics(), model.alpha


def tomotopy(train: Any, topics: int, seed: int, iterations: int) -> Fitted:
    """Collapsed Gibbs sampling; it learns its prior of documents by itself."""
    import tomotopy as tp

    model = tp.LDAModel(k=topics, seed=seed)
    for a, b in itertools.pairwise(train.indptr.tolist()):
        model.add_doc([str(word) for word in np.repeat(train.indices[a:b], train.data[a:b].astype(int))])
    model.train(iterations, workers=1)
    found = np.full((topics, train.shape[1]), 1e-9)
    known = np.array([int(word) for word in model.used_vocabs])
    for topic in range(topics):
        found[topic, known] += model.get_topic_word_dist(topic)
    return found, np.asarray(model.alpha)


def frequencies(train: Any, topics: int, seed: int) -> Fitted:
    """No topics."""
    return np.asarray(train.sum(0), np.float64).reshape(1, -1), 1.0


MODELS: dict[str, tuple[str, Callable[..., Fitted], tuple[Any, ...]]] = {
    NONE: ("flockstep", frequencies, ()),
    OURS: ("flockstep", ours, ()),
    "scikit-learn online": ("sklearn", scikit_learn, ("online",)),
    "scikit-learn batch": ("sklearn", scikit_learn, ("batch",)),
    "gensim, 1 pass": ("gensim", gensim, (1,)),
    "gensim, 10 passes": ("gensim", gensim, (10,)),
    "tomotopy, 200": ("tomotopy", tomotopy, (200,)),
    "tomotopy, 1,000": ("tomotopy", tomotopy, (1000,)),
}


@dataclass(frozen=True)
class Job:
    """One cell's run."""

    corpus: str
    topics: int
    model: str
    seed: int
    most: int | None
    """Documents to learn from, at most."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is called in the file."""
        return self.corpus, str(self.topics), self.model, str(self.seed)


def run(job: Job) -> dict[str, Any]:
    """Train, and measure; in a process of its own."""
    train, test = CORPORA[job.corpus]()
    train = train[: job.most]
    # A word that no document to learn from has is foreseen by nobody.
    known = np.flatnonzero(np.asarray(train.sum(0)).ravel())
    train, test = train[:, known], test[:, known]
    _, fit, how = MODELS[job.model]
    if job.model == OURS:
        # Compiling is done once on a machine, and is not learning.
        LDA(2, max_iter=1).fit(train[:50])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wall, began = time.perf_counter(), time.process_time()
        components, alpha = fit(train, job.topics, job.seed, *how)
        seconds, wall = time.process_time() - began, time.perf_counter() - wall
    top = coherence.top_words(components)
    scores = coherence.npmi(coherence.together(train, top), top)
    return {
        "corpus": job.corpus,
        "topics": job.topics,
        "model": job.model,
        "seed": job.seed,
        "perplexity": round(Completion(test).of_components(components, alpha), 1),
        "NPMI": round(float(np.nanmean(scores)), 4),
        "CPU seconds": round(seconds, 2),
        "seconds": round(wall, 2),
    }


def before(folder: Path | None) -> list[dict[str, Any]]:
    """What an earlier run kept."""
    path = None if folder is None else folder / f"{FILE}.csv"
    if path is None or not path.is_file():
        return []
    with path.open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["corpus"], int(row["topics"]), row["model"]), []).append(row)
    order = {name: number for number, name in enumerate((*CORPORA, *MODELS))}
    found = []
    for (corpus, topics, model), these in sorted(
        cells.items(), key=lambda c: (order[c[0][0]], c[0][1], order[c[0][2]])
    ):
        told = {"corpus": corpus, "topics": topics, "model": model, "seeds": len(these)}
        told |= {
            name: statistics.mean(float(row[name]) for row in these) for name in ("perplexity", "NPMI", "CPU seconds")
        }
        found.append(told)
    return found


def judged(means: list[dict[str, Any]]) -> dict[str, bool]:
    """The bars, cell by cell where each is meant."""
    met, coherent = {}, []
    cells = dict.fromkeys((row["corpus"], row["topics"]) for row in means)
    for corpus, topics in cells:
        here = {row["model"]: row for row in means if (row["corpus"], row["topics"]) == (corpus, topics)}
        peers = {name: row for name, row in here.items() if name not in (OURS, NONE)}
        if OURS not in here or not peers:
            continue
        mine = here[OURS]
        best = min(peers.values(), key=lambda row: row["perplexity"])
        told = f"{mine['perplexity']:,.0f}, best peer {best['perplexity']:,.0f} ({best['model']})"
        met[f"{corpus}, {topics} topics: {told}"] = mine["perplexity"] <= 1.01 * best["perplexity"]
        good = [row for row in peers.values() if row["perplexity"] <= 1.01 * mine["perplexity"]]
        if good:
            ratio = min(row["CPU seconds"] for row in good) / mine["CPU seconds"]
            met[f"{corpus}, {topics} topics: who is as good took {ratio:.1f} times our seconds, at least 4"] = (
                ratio >= 4
            )
        if "tomotopy, 1,000" in peers:
            coherent.append(mine["NPMI"] >= peers["tomotopy, 1,000"]["NPMI"])
    if coherent:
        told = f"NPMI at least tomotopy's in {sum(coherent)} of {len(coherent)} cells, in most"
        met[told] = 2 * sum(coherent) > len(coherent)
    return met


def main() -> None:
    """Every cell that is not there yet."""
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA), metavar="CORPUS")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--topics", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=1, help="runs at a time (default: %(default)s)")
    options = parser.parse_args()
    # Before any child is started: one thread each, or seconds of one would be seconds of several.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    corpora, topics, seeds, most = options.corpora, options.topics, options.seeds, None
    models = [name for name in options.models if find_spec(MODELS[name][0])]
    if options.quick:
        corpora, topics, seeds, most = ["Shakespeare speeches"], [10], [0], 300
        models = [name for name in models if name not in ("tomotopy, 1,000", "gensim, 10 passes")]
    folder = options.out or (None if options.quick else RESULTS)
    rows = before(folder)
    done = {(row["corpus"], row["topics"], row["model"], row["seed"]) for row in rows}
    jobs = [Job(c, k, m, s, most) for s in seeds for c in corpora for k in topics for m in models]
    left = [job for job in jobs if job.key not in done]
    # The longest first, so that none is left to run alone.
    left.sort(key=lambda job: (-job.topics, -list(MODELS).index(job.model)))
    progress = Progress(max(1, len(left)))
    for row in run_all(run, left, options.workers):
        rows.append(row)
        progress(f"{row['corpus']}, {row['topics']} topics, {row['model']}: {row['perplexity']:,.0f}")
        if folder is not None:
            keep(f"benchmarks.{FILE}", rows, folder)
    means = table(rows)
    missing = sorted(set(MODELS) - set(models))
    finish(
        NAME,
        means,
        figures={"cells": len(means), "left out": missing},
        met=judged(means),
        folder=None,
        note=f"left out: {', '.join(missing)}" if missing else "",
    )


if __name__ == "__main__":
    main()
