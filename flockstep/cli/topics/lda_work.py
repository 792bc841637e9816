"""What the commands of ``flockstep lda`` do. Imported when one is run: it needs scikit-learn."""

from __future__ import annotations

import csv
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import typer
from scipy import sparse

from flockstep import units
from flockstep.cli.support import consoles
from flockstep.cli.support.stopping import Stop
from flockstep.cli.topics import topic_table
from flockstep.lda import LDA, export, model_files
from flockstep.lda.core.topics import Topics
from flockstep.lda.data import sources
from flockstep.lda.data.holdout import split
from flockstep.lda.data.text import Words
from flockstep.lda.evaluate import coherence
from flockstep.lda.evaluate.survey import Survey, survey
from flockstep.lda.nodes.fit_nodes import fit_on_nodes
from flockstep.lda.page.page import write_page
from flockstep.lda.words import words_of
from flockstep.trace import Row

_SCORED_WORDS = 10
_REPORT = "report.json"
_TYPICAL = 20


@dataclass(frozen=True)
class Report:
    """What a fit found out about topics besides the topics; kept beside the model."""

    documents: int
    tokens: float
    sizes: list[float]
    npmi: list[float | None]
    umass: list[float | None]
    held_out_perplexity: float | None


def opened(
    source: Path, *, min_df: float, max_df: float, most: int, stop_words: str | None, ngrams: int, **how: Any
) -> sources.Source:
    """A corpus by its options; of those that count, whole numbers are documents, others shares of them."""
    listed: str | list[str] | None = stop_words
    if stop_words is not None and stop_words != "english":
        if not Path(stop_words).is_file():
            raise ValueError(f"--stop-words must be 'english' or a file with a word per line, got {stop_words!r}")
        listed = [word for word in sources.read_vocabulary(Path(stop_words)) if word]
    words = Words(
        min_df=int(min_df) if min_df >= 1 else min_df,
        max_df=int(max_df) if max_df > 1 else max_df,
        most=most,
        stop_words=listed,
        ngrams=ngrams,
    )
    return sources.open_source(source, words=words, **how)


def seeds(path: Path | None, vocabulary: list[str] | None) -> list[list[int | str]] | None:
    """A line per topic to the columns of its words."""
    if path is None:
        return None
    if vocabulary is None:
        raise ValueError("--seeds needs a corpus whose words are known")
    columns = {word: number for number, word in enumerate(vocabulary)}
    found: list[list[int | str]] = []
    for line in sources.read_vocabulary(path):
        missing = [word for word in line.split() if word not in columns]
        if missing:
            raise ValueError(f"{path} has {missing[0]!r}, which is no word of the corpus, or was left out of it")
        found.append([columns[word] for word in line.split()])
    return found


def resumed(out: Path, path: Path, *, passes: int, jobs: int, by: str | None, **how: Any) -> tuple[LDA, sources.Source]:
    """The model of a folder, to learn on, and the documents in its words."""
    saved = model_files.read(out)
    left = passes - saved.model.n_iter_
    if left < 1:
        raise ValueError(f"the model in {out} has made {saved.model.n_iter_} passes already: ask for more (--passes)")
    blocks, like = sources.open_like(saved, path, **how)
    model = saved.model.set_params(warm_start=True, max_iter=left, n_jobs=jobs, verbose=1)
    labels = sources.labels_of(like.texts, by) if by is not None else None
    return model, replace(like, counts=sparse.vstack(list(blocks), format="csr"), by=by or "", labels=labels)


def fit(
    source: sources.Source, model: LDA, *, held_out: float, seed: int, out: Path, shown: int, nodes: int = 1
) -> None:
    """Learn, save, and tell."""
    console = consoles.messages()
    console.print(_about(source), markup=False, soft_wrap=True)
    kept, apart = split(source.counts, held_out, seed=seed)
    began = time.monotonic()
    try:
        _learn(model, kept, apart, nodes)
    except KeyboardInterrupt:
        _save_early(model, source, out)
        raise typer.Exit(consoles.INTERRUPTED) from None
    seconds = time.monotonic() - began
    _save(model, source, out)
    try:
        _tell(model, source, out, seconds=seconds, shown=shown)
    except KeyboardInterrupt:
        consoles.complain(f"Stopped by Ctrl-C. The model is saved: flockstep lda topics {out}")
        raise typer.Exit(consoles.INTERRUPTED) from None


def transform(model: Path, source: Path, *, pattern: str, encoding: str, column: str | None, out: Path) -> None:
    """A line per document: how much of each topic it has."""
    saved = model_files.read(model)
    blocks, named = sources.open_like(saved, source, pattern=pattern, encoding=encoding, column=column)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f"{out.name}.new")
    number = 0
    try:
        with unfinished.open("w", newline="", encoding="utf8") as file, consoles.messages().status("transforming ..."):
            writer = csv.writer(file)
            writer.writerow(["document", *(f"topic{k}" for k in range(saved.model.n_components))])
            for block in blocks:
                for row in np.asarray(saved.model.transform(block)):
                    title = named.titles([number]).get(number, str(number))
                    writer.writerow([title, *(f"{share:.6g}" for share in row)])
                    number += 1
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    consoles.results().print(f"Topics of {number:,} documents: {out}", markup=False, soft_wrap=True)


def show(model: Path, *, count: int) -> None:
    """The table again."""
    saved = model_files.read(model)
    words = words_of(saved.model, saved.vocabulary)
    report = _read_report(model, saved.model)
    of = f" of {report.documents:,} documents" if report.documents else ""
    consoles.results().print(_table(saved.model, words, report, f"{saved.model.n_components} topics{of}", count))


def _learn(model: LDA, kept: Any, apart: Any, nodes: int) -> None:
    """Where the learning is done: on threads here, or in several processes."""
    # Not by an exception out of nowhere: Python throws one away that is raised in a weak reference's callback, of which
    # starting and ending threads have some.
    with Stop() as stop:
        try:
            if nodes == 1:
                model.fit(kept, eval_docs=apart, stop=lambda: stop.asked)
            else:
                _learn_on_nodes(model, kept, apart, nodes, stop)
        except KeyboardInterrupt:
            consoles.complain("Stopped at once; nothing is saved.")
            raise typer.Exit(consoles.INTERRUPTED) from None
    if stop.asked:
        raise KeyboardInterrupt


def _learn_on_nodes(model: LDA, kept: Any, apart: Any, nodes: int, stop: Stop) -> None:
    with consoles.messages().status(f"{nodes} processes learn ...") as status:

        def show(row: Row) -> None:
            status.update(f"{nodes} processes learn: perplexity {row.loss:,.0f} after {row.seconds:.0f} s ...")

        fit_on_nodes(model, kept, nodes=nodes, eval_docs=apart, callback=show, stop=lambda: stop.asked)


def _save_early(model: LDA, source: sources.Source, out: Path) -> None:
    table = getattr(model, "topics_", None)
    # Decay of nodes is in the table already; they have counted their batches.
    if table is None or not (table.log_decay or getattr(model, "n_batch_iter_", 1) > 1):
        consoles.complain("Stopped by Ctrl-C before anything was learned; nothing is saved.")
        return
    model.topics_ = _copied(table)
    _save(model, source, out)
    consoles.complain(f"Stopped by Ctrl-C. What was learned so far is saved: flockstep lda topics {out}")


def _copied(table: Topics) -> Topics:
    """The table as it is now, its totals those of its rows, whatever somebody who learns still may write to it."""
    now = Topics(table.rows.copy(), prior=table.prior, objective=table.objective)
    now.stamps, now.log_decay = table.stamps.copy(), table.log_decay
    now.totals = now.settle().sum(axis=0, dtype=np.float64)
    return now


def _save(model: LDA, source: sources.Source, out: Path) -> None:
    # Of an earlier model in the same folder.
    for stale in (_REPORT, "topics.csv", "topics.html"):
        (out / stale).unlink(missing_ok=True)
    # Whoever loads it and fits it means a new one.
    model.set_params(warm_start=False)
    model_files.save(out, model, source.vocabulary, text=source.text)
    export.write_topics(out / "topics.csv", model, source.vocabulary)


def _tell(model: LDA, source: sources.Source, out: Path, *, seconds: float, shown: int) -> None:
    """The table, and the page to explore."""
    words = words_of(model, source.vocabulary)
    with consoles.messages().status("looking at all documents ..."):
        typical = min(_TYPICAL, max(5, 2000 // model.n_components))
        seen = survey(model, source.counts, typical=typical, by=source.by, labels=source.labels)
        report = _report(model, source, seen)
        (out / _REPORT).write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf8")
        page = _page(model, words, source, seen, report, out)
    title = f"{model.n_components} topics of {seen.documents:,} documents, learned in {units.show_seconds(seconds)}"
    if report.held_out_perplexity is not None:
        title += f", held-out perplexity {report.held_out_perplexity:,.1f}"
    results = consoles.results()
    results.print(_table(model, words, report, title, shown))
    results.print(f"Model:  {out}\nTopics: {out / 'topics.csv'}{page}", markup=False, soft_wrap=True)


def _about(source: sources.Source) -> str:
    shape = getattr(source.counts, "shape", None)
    if shape is None:
        return f"{source.kind}, too large to hold: read again at every pass"
    tokens = source.counts.sum(dtype=np.float64)
    return f"{source.kind}: {shape[0]:,} documents, {shape[1]:,} words, {tokens:,.0f} tokens"


def _report(model: LDA, source: sources.Source, seen: Survey) -> Report:
    top = coherence.top_words(model.components_, _SCORED_WORDS)
    together = coherence.together(source.counts, top)
    scores = [float(score["perplexity"]) for score in getattr(model, "eval_scores_", [])]
    return Report(
        documents=seen.documents,
        tokens=seen.tokens,
        sizes=seen.sizes.tolist(),
        npmi=_numbers(coherence.npmi(together, top)),
        umass=_numbers(coherence.umass(together, top)),
        held_out_perplexity=scores[-1] if scores else None,
    )


def _numbers(values: Any) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _read_report(folder: Path, model: LDA) -> Report:
    """What the fit wrote, or, of a model saved by other means, what the model itself knows."""
    path = folder / _REPORT
    if not path.is_file():
        totals = model.components_.sum(axis=1, dtype=np.float64)
        return Report(0, 0.0, (totals / totals.sum()).tolist(), [], [], None)
    try:
        report = Report(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if len(report.sizes) != model.n_components:
        raise ValueError(f"{path} is of another model: it has {len(report.sizes)} topics, not {model.n_components}")
    return report


def _table(model: LDA, words: list[str], report: Report, title: str, count: int) -> Any:
    return topic_table.table(
        model, words, title=title, count=count, sizes=report.sizes, npmi=report.npmi or None, umass=report.umass or None
    )


def _page(model: LDA, words: list[str], source: sources.Source, seen: Survey, report: Report, out: Path) -> str:
    numbers = sorted(set(seen.typical.ravel().tolist()))
    path = out / "topics.html"
    write_page(
        path,
        model,
        words,
        survey=seen,
        titles=source.titles(numbers),
        snippets=source.snippets(numbers),
        coherence=[float("nan") if score is None else score for score in report.npmi],
        title=f"{source.name}: {model.n_components} topics",
    )
    return f"\nPage:   {path}"
