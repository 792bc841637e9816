"""``flockstep lda``: topics of a corpus, from a folder of texts to a page to explore."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

from flockstep import check
from flockstep.cli.support import consoles, options
from flockstep.cli.topics import lda_options as asked

HELP = """Find the topics of a corpus, look at them, and use them on new texts.

\b
[bold]Examples[/bold]
  flockstep lda fit my-texts/ --topics 50 --jobs 2 --out my-topics
  flockstep lda scan my-texts/ --topics 10,20,50,100 --out scan
  flockstep lda topics my-topics
  flockstep lda transform my-topics new-texts/ --out doc_topics.csv

Open my-topics/topics.html in a browser: words, sizes, distances and typical
documents of all topics, in one file that needs no network.
"""

FIT_HELP = """Learn topics from a corpus.

SOURCE is looked at to see what it is: a folder with a document per file, a
text file with a document per line, a table with texts in a --column (CSV, TSV
or JSON lines), a UCI bag-of-words file (docword.*.txt), or an npz of counts
(SciPy's, or arrays indptr, indices and counts).

Words of texts are lower case and begin with a letter. Those in a single
document or in more than half of them are left out; stop words are not, unless
you ask for it.

\b
[bold]Examples[/bold]
  flockstep lda fit my-texts/ --topics 50 --jobs 2 --out my-topics
  flockstep lda fit mails/ --pattern "*.eml" --encoding latin-1 --out mails-lda
  flockstep lda fit abstracts.txt.gz --stop-words english --min-df 5 --out lda
  flockstep lda fit reviews.csv --column text --by year --ngrams 2 --out reviews-lda
  flockstep lda fit my-texts/ --passes 20 --resume --out my-topics
  flockstep lda fit my-texts/ --seeds words.txt --out my-topics
  flockstep lda fit docword.nips.txt.gz --vocab vocab.nips.txt --out nips
  flockstep lda fit counts.npz --topics 100 --objective map --held-out 0.1 --out lda

\b
[bold]Writes into --out[/bold]
  model.json, model.safetensors, vocabulary.txt   the model
  topics.csv                                      top words of every topic
  topics.html                                     the page to explore them

Ctrl-C stops early and saves what was learned so far; a second one stops at once.
"""

SCAN_HELP = """Try several numbers of topics, and see which suits the corpus.

Each model learns from the same documents and is measured on the same others:
held-out perplexity says how well it foresees words (lower is better), NPMI how
well the top words of a topic go together (higher is better). They need not
agree: more topics usually foresee better, until there are too few documents
for each, and fewer are easier to read.

\b
[bold]Examples[/bold]
  flockstep lda scan my-texts/ --out scan
  flockstep lda scan reviews.csv --column text --topics 5,10,20,40 --jobs 2 --out scan
"""

TRANSFORM_HELP = """Say how much of each topic new documents have.

Texts are split into words as those the model was learned from; words it does
not know are passed over. Counts must have the columns of the model. Writes a
CSV file: a line per document, a column per topic, each line summing to 1.

\b
[bold]Examples[/bold]
  flockstep lda transform my-topics new-texts/ --out doc_topics.csv
  flockstep lda transform my-topics new-counts.npz --out doc_topics.csv
  flockstep lda transform my-topics new.jsonl --column body --out doc_topics.csv
"""

TOPICS_HELP = """Show the topics of a model again.

\b
[bold]Examples[/bold]
  flockstep lda topics my-topics
  flockstep lda topics my-topics --words 20
"""

app = typer.Typer(help=HELP, no_args_is_help=True, add_completion=False)


@app.command("fit", help=FIT_HELP)
def fit(
    source: asked.Source,
    out: asked.Out,
    topics: asked.Topics = 50,
    jobs: asked.Jobs = 1,
    passes: asked.Passes = 10,
    batch: asked.Batch = None,
    objective: asked.Goal = asked.Objective.cvb0,
    doc_topic_prior: asked.DocPrior = None,
    topic_word_prior: asked.WordPrior = None,
    held_out: asked.HeldOut = 0.0,
    nodes: asked.Nodes = 1,
    resume: asked.Resume = False,
    seeds: asked.Seeds = None,
    seed: asked.Seed = 0,
    vocab: asked.Vocab = None,
    pattern: asked.Pattern = "*",
    encoding: asked.Encoding = "utf-8",
    column: asked.Column = None,
    by: asked.By = None,
    ngrams: asked.NGrams = 1,
    min_df: asked.MinDf = 2,
    max_df: asked.MaxDf = 0.5,
    most_words: asked.MostWords = 100_000,
    stop_words: asked.StopWords = None,
    words: asked.TopWords = 10,
    debug: options.Debug = False,
) -> None:
    """Learn topics from a corpus."""
    with consoles.plain_errors(debug=debug):
        work = _work()
        numbers = {"topics": topics, "jobs": jobs, "nodes": nodes, "passes": passes, "words": words, "ngrams": ngrams}
        for name, value in numbers.items() if batch is None else {**numbers, "batch": batch}.items():
            check.whole("fit", name, value)
        check.fraction("fit", "held_out", held_out)
        # Made before the work, so that a folder that cannot be written costs no one their results.
        out.mkdir(parents=True, exist_ok=True)
        how = {"pattern": pattern, "encoding": encoding, "column": column}
        if resume:
            if nodes > 1 or seeds is not None:
                raise ValueError("--resume goes on with one model in one process: leave --nodes and --seeds out")
            model, corpus = work.resumed(out, source, passes=passes, jobs=jobs, by=by, **how)
        else:
            words_in = {"min_df": min_df, "max_df": max_df, "most": most_words, "stop_words": stop_words}
            corpus = work.opened(source, vocabulary=vocab, by=by, ngrams=ngrams, **words_in, **how)
            model = work.LDA(
                n_components=topics,
                objective=objective.value,
                doc_topic_prior=asked.value_of(doc_topic_prior),
                topic_word_prior=asked.value_of(topic_word_prior),
                seed_words=work.seeds(seeds, corpus.vocabulary),
                n_jobs=jobs,
                max_iter=passes,
                batch_size=batch,
                random_state=seed,
                verbose=1,
            )
        work.fit(corpus, model, held_out=held_out, seed=seed, out=out, shown=words, nodes=nodes)


@app.command("scan", help=SCAN_HELP)
def scan(
    source: asked.Source,
    out: asked.ScanOut,
    topics: asked.ManyTopics = "10,20,50,100",
    jobs: asked.Jobs = 1,
    passes: asked.Passes = 10,
    objective: asked.Goal = asked.Objective.cvb0,
    held_out: asked.HeldOut = 0.1,
    seed: asked.Seed = 0,
    vocab: asked.Vocab = None,
    pattern: asked.Pattern = "*",
    encoding: asked.Encoding = "utf-8",
    column: asked.Column = None,
    ngrams: asked.NGrams = 1,
    min_df: asked.MinDf = 2,
    max_df: asked.MaxDf = 0.5,
    most_words: asked.MostWords = 100_000,
    stop_words: asked.StopWords = None,
    debug: options.Debug = False,
) -> None:
    """Try several numbers of topics."""
    with consoles.plain_errors(debug=debug):
        work, scans = _work(), _work("lda_scan")
        wanted = scans.numbers(topics)
        for name, value in {"jobs": jobs, "passes": passes, "ngrams": ngrams}.items():
            check.whole("scan", name, value)
        how = {"pattern": pattern, "encoding": encoding, "column": column, "vocabulary": vocab}
        words_in = {"min_df": min_df, "max_df": max_df, "most": most_words, "stop_words": stop_words}
        out.mkdir(parents=True, exist_ok=True)
        corpus = work.opened(source, ngrams=ngrams, **words_in, **how)
        settings = {"objective": objective.value, "n_jobs": jobs, "max_iter": passes}
        scans.run(corpus, wanted, held_out=held_out, seed=seed, out=out, **settings)


@app.command("transform", help=TRANSFORM_HELP)
def transform(
    model: asked.Model,
    source: asked.Source,
    out: asked.Table,
    pattern: asked.Pattern = "*",
    encoding: asked.Encoding = "utf-8",
    column: asked.Column = None,
    debug: options.Debug = False,
) -> None:
    """Say how much of each topic new documents have."""
    with consoles.plain_errors(debug=debug):
        _work().transform(model, source, pattern=pattern, encoding=encoding, column=column, out=out)


@app.command("topics", help=TOPICS_HELP)
def show(model: asked.Model, words: asked.TopWords = 10, debug: options.Debug = False) -> None:
    """Show the topics of a model again."""
    with consoles.plain_errors(debug=debug):
        _work().show(model, count=check.whole("topics", "words", words))


def _work(part: str = "lda_work") -> Any:
    """The part that needs scikit-learn, or one line that says how to get it."""
    try:
        return import_module(f"flockstep.cli.topics.{part}")
    except ImportError as missing:
        consoles.complain(str(missing))
        raise typer.Exit(consoles.FAILED) from None
