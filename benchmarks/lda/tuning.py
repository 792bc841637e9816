"""Which settings are best on the validation part; nothing here looks at the test part."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from benchmarks.lda import peers, settings
from benchmarks.lda.newsgroups import Split
from flockstep.lda import LDA

TOPICS, SEED = 100, 0

GRIDS: dict[str, dict[str, list[Any]]] = {
    "vb": {
        "doc_topic_prior": [0.02, 0.05, 0.1],
        "topic_word_prior": [0.02, 0.1],
        "batch_size": [1024, 2048],
        "learning_offset": [1.0, 10.0],
        "learning_decay": [0.5, 0.7],
    },
    "map": {
        "objective": ["map"],
        "doc_topic_prior": [0.05, 0.1],
        "topic_word_prior": [0.02, 0.05],
        "batch_size": [512, 1024],
        "learning_offset": [1.0, 10.0],
        "learning_decay": [0.5, 0.6, 0.7],
    },
    "cvb0": {
        "objective": ["cvb0"],
        "doc_topic_prior": [0.03, 0.05],
        "topic_word_prior": [0.02],
        "batch_size": [512, 1024],
        "learning_offset": [1.0],
        "learning_decay": [0.5, 0.6],
        "mean_change_tol": [3e-3],
    },
    "gensim": {"alpha": [0.05], "eta": [0.02], "chunksize": [1024], "offset": [1.0, 10.0], "decay": [0.5]},
    "tomotopy": {"alpha": [0.03, 0.1], "eta": [0.02, 0.05, 0.1]},
}


def tuned(split: Split, names: list[str]) -> Iterator[dict[str, Any]]:
    """A row per setting: the validation perplexity it ends with."""
    for name in names:
        for values in itertools.product(*GRIDS[name].values()):
            chosen = dict(zip(GRIDS[name], values, strict=True))
            yield {"system": name, **chosen, "perplexity": round(_score(name, chosen, split), 1)}


def _score(name: str, chosen: dict[str, Any], split: Split) -> float:
    if name in ("vb", "map", "cvb0"):
        settled = {"objective": name, "max_iter": settings.PASSES[name], **chosen}
        model = LDA(TOPICS, random_state=SEED, **settled).fit(split.train)
        return split.validation.of_topics(model.topics_)
    train = {"gensim": peers.gensim, "tomotopy": peers.tomotopy}[name]
    passes = {} if name == "gensim" else {"passes": 60}
    return split.validation.of_components(train(split.train, TOPICS, SEED, **passes, **chosen).topics)
