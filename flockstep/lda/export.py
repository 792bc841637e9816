"""Topics for other programs: a gensim model, gensim's lists of topics, and a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from flockstep.lda.words import top_of, words_of


def show_topics(
    model: Any, vocabulary: Iterable[str] | None = None, *, count: int = 10
) -> list[tuple[int, list[tuple[str, float]]]]:
    """The top words of every topic with probabilities, as gensim's ``show_topics(formatted=False)`` lists them.

    Args:
        model: A fitted topic model: ours, or scikit-learn's.
        vocabulary: The word of every column. None: the names that the model was fitted with, else "word 0", "word 1",
            ...
        count: Words of each topic.

    Returns:
        Pairs of a topic's number and its (word, probability) pairs, likeliest first.

    Example:
        for number, words in show_topics(model, vocabulary):
            print(number, words)
    """
    return list(enumerate(top_of(model, words_of(model, vocabulary), count)))


def write_topics(path: str | Path, model: Any, vocabulary: Iterable[str] | None = None, *, count: int = 20) -> Path:
    """Write the top words of every topic as CSV: topic, rank (1 is the likeliest), word, probability.

    Args:
        path: The file to write.
        model: A fitted topic model: ours, or scikit-learn's.
        vocabulary: The word of every column. None: the names that the model was fitted with, else "word 0", "word 1",
            ...
        count: Words of each topic.

    Returns:
        The path.

    Example:
        write_topics("topics.csv", model, vocabulary)
    """
    path = Path(path)
    with path.open("w", newline="", encoding="utf8") as file:
        writer = csv.writer(file)
        writer.writerow(["topic", "rank", "word", "probability"])
        for topic, top in show_topics(model, vocabulary, count=count):
            writer.writerows([topic, rank, word, f"{share:.6g}"] for rank, (word, share) in enumerate(top, start=1))
    return path


def to_gensim(model: Any, vocabulary: Iterable[str] | None = None) -> Any:
    """A gensim ``LdaModel`` with these topics, priors and words, to be used and trained further there.

    Its ``get_topics()`` are our topics. What it says of a document is variational inference by its own code, close to
    our ``transform`` for ``objective="vb"``, and another estimate than ours for the other objectives.

    Args:
        model: A fitted ``LDA``.
        vocabulary: The word of every column. None: the names that the model was fitted with, else "word 0", "word 1",
            ...

    Returns:
        The gensim model.

    Example:
        to_gensim(model, vocabulary).print_topics()
    """
    try:
        from gensim.models import LdaModel
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("to_gensim needs gensim: pip install gensim", name=missing.name) from missing
    words = words_of(model, vocabulary)
    components = np.asarray(model.components_, dtype=np.float64)
    topics = components.shape[0]
    prior = float(model.topic_word_prior_)
    made = LdaModel(
        num_topics=topics,
        id2word=dict(enumerate(words)),
        alpha=np.array(np.broadcast_to(model.doc_topic_prior_, topics), np.float64),
        eta=prior,
        dtype=np.float64,
    )
    # gensim keeps the statistics without the prior, and adds it when asked for topics.
    made.state.sstats = components - prior
    made.sync_state()
    return made
