"""Corpora in two parts each: to learn from, and to foresee."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import CountVectorizer

from flockstep.workloads.datasets import data_folder, shakespeare

Pair = tuple[Any, Any]


def _counted(texts: list[str], *, held_out: int, least: int) -> Pair:
    """Counts of lower-case words without stop words, documents of two words and more, some of them apart."""
    words = CountVectorizer(stop_words="english", min_df=least, max_df=0.5, token_pattern=r"(?u)\b[a-z]{2,}\b")
    counts = sp.csr_array(words.fit_transform(texts).astype(np.float32))
    counts = counts[np.flatnonzero(counts.sum(1) > 1)]
    order = np.random.default_rng(0).permutation(counts.shape[0])
    return counts[order[held_out:]], counts[order[:held_out]]


def newsgroups() -> Pair:
    """Messages; the later ones of the set's own split are to foresee."""
    file = np.load(data_folder("20newsgroups") / "20news_bow.npz")
    counts = sp.csr_array((file["counts"].astype(np.float32), file["indices"].astype(np.int32), file["indptr"]))
    filled = np.diff(file["indptr"]) > 0
    later = np.random.default_rng(0).permutation(np.flatnonzero(filled & (file["split"] == 1)))
    return counts[np.flatnonzero(filled & (file["split"] == 0))], counts[later[:2000]]


def wikipedia() -> Pair:
    """Paragraphs of WikiText-2."""
    text = gzip.decompress((data_folder("wikitext-2") / "train.txt.gz").read_bytes()).decode("utf8")
    paragraphs = [line for line in text.split("\n") if len(line.split()) > 20 and not line.strip().startswith("=")]
    return _counted([line.replace("<unk>", " ") for line in paragraphs], held_out=2000, least=5)


def sentences() -> Pair:
    """English sentences of Tatoeba, three words each on average."""
    text = gzip.decompress((data_folder("tatoeba-deu-eng") / "deu-eng.tsv.gz").read_bytes()).decode("utf8")
    return _counted(sorted({line.split("\t")[0] for line in text.split("\n") if line}), held_out=3000, least=5)


def speeches() -> Pair:
    """What one of Shakespeare's characters says at a time."""
    said = [part.partition("\n")[2] for part in shakespeare().split("\n\n")]
    return _counted([speech.lower() for speech in said if speech], held_out=1000, least=3)


CORPORA: dict[str, Callable[[], Pair]] = {
    "20 Newsgroups": newsgroups,
    "Wikipedia paragraphs": wikipedia,
    "Tatoeba sentences": sentences,
    "Shakespeare speeches": speeches,
}
