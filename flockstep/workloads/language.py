"""Language models: an LSTM that predicts the next character of Shakespeare, or the next word of WikiText-2.

Batches are random windows of the text, and the hidden state begins at zero in each: it is not carried over
from batch to batch, so that a gradient depends on nothing but the vector and the random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flockstep import check
from flockstep.workloads.datasets import data_folder, read_words, shakespeare
from flockstep.workloads.module import ModuleWorkload
from flockstep.workloads.sharding import deal

Tokens = NDArray[np.int64]

_WINDOWS_PER_PIECE = 8
# Logits of one evaluation batch: enough to keep the machine busy, and 64 MB.
_LOGITS_AT_ONCE = 2**24


class RecurrentModel(nn.Module):
    """Embedding, LSTM layers, and logits over the vocabulary; tied, the logits reuse the embedding."""

    def __init__(
        self, *, vocabulary: int, embedding: int, hidden: int, layers: int, tied: bool, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.embed = nn.Embedding(vocabulary, embedding)
        widths = [embedding] + [hidden] * layers
        self.layers = nn.ModuleList(nn.LSTM(a, b) for a, b in pairwise(widths))
        out = embedding if tied else hidden
        self.project = nn.Identity() if out == hidden else nn.Linear(hidden, out, bias=False)
        self.logits = nn.Linear(out, vocabulary)
        # The embedding's usual unit variance would make the first logits, which reuse it, far too large.
        for table in (self.embed, self.logits):
            nn.init.uniform_(table.weight, -0.1, 0.1)
        nn.init.zeros_(self.logits.bias)
        if tied:
            self.logits.weight = self.embed.weight

    def forward(self, tokens: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits for the token after each of ``tokens`` (time, batch); ``generator`` draws the dropout."""
        h = self._drop(self.embed(tokens), generator)
        for layer in self.layers:
            h = self._drop(layer(h)[0], generator)
        logits: Tensor = self.logits(self.project(h))
        return logits

    def _drop(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        # Not nn.Dropout: that draws from torch's global generator, which nodes in threads would share.
        if not self.training or not self.dropout or generator is None:
            return h
        kept = torch.empty_like(h).bernoulli_(1 - self.dropout, generator=generator)
        return h * kept.div_(1 - self.dropout)


class LanguageModel(ModuleWorkload):
    """What CharLSTM and WordLSTM share: a recurrent model, and windows of a tokenised text."""

    def __init__(
        self,
        *,
        build: Callable[..., RecurrentModel],
        train: Tokens,
        validation: Tokens,
        vocabulary: int,
        batch: int,
        length: int,
        heterogeneity: float,
        validation_windows: int,
        seed: int,
        device: str,
    ) -> None:
        check.whole(self, "validation_windows", validation_windows)
        self._batch = check.whole(self, "batch", batch)
        self._heterogeneity = check.fraction(self, "heterogeneity", heterogeneity)
        self._length, self._vocabulary, self._seed = length, vocabulary, seed
        super().__init__(build=partial(build, vocabulary=vocabulary), seed=seed, device=device)
        self._tokens = torch.from_numpy(train).to(self.device)
        pieces = max(1, len(train) // (_WINDOWS_PER_PIECE * length))
        self._cuts = np.arange(pieces + 1) * len(train) // pieces
        self._pieces = np.arange(pieces)
        last = len(validation) - length - 1
        starts = np.linspace(0, last, min(validation_windows, last + 1)).astype(np.int64)
        self._validation = _windows(torch.from_numpy(validation), starts, length).to(self.device)

    def batch_loss(self, module: nn.Module, rng: np.random.Generator) -> Tensor:
        """The mean cross-entropy of random windows, each inside one of this shard's pieces of the text."""
        pieces = self._pieces[rng.integers(len(self._pieces), size=self._batch)]
        begin, end = self._cuts[pieces], self._cuts[pieces + 1]
        windows = _windows(self._tokens, begin + rng.integers(end - begin - self._length), self._length)
        generator = torch.Generator(self.device).manual_seed(int(rng.integers(2**63)))
        return cross_entropy(module(windows[:-1], generator).flatten(0, 1), windows[1:].flatten())

    def loss(self, x: Tensor) -> float:
        """The mean cross-entropy, in nats, over a fixed set of validation windows."""
        at_once = max(1, _LOGITS_AT_ONCE // (self._length * self._vocabulary))
        total = 0.0
        with self.evaluating(x) as module:
            for windows in torch.split(self._validation, at_once, dim=1):
                logits = module(windows[:-1]).flatten(0, 1)
                total += float(cross_entropy(logits, windows[1:].flatten(), reduction="sum"))
        return total / self._validation[1:].numel()

    def perplexity(self, x: Tensor) -> float:
        """exp(loss): among how many tokens the model still hesitates."""
        return float(torch.tensor(self.loss(x), dtype=torch.float64).exp())

    def shard(self, rank: int, size: int) -> Self:
        """A node's pieces of the text: random ones at heterogeneity 0, one contiguous stretch at 1."""
        part = self.with_own_shell()
        pieces = len(self._cuts) - 1
        part._pieces = deal(pieces, rank, size, heterogeneity=self._heterogeneity, seed=self._seed)
        return part


class CharLSTM(LanguageModel):
    """A character LSTM on Shakespeare or another text: nine tenths to train, the last to validate."""

    def __init__(
        self,
        *,
        batch: int = 16,
        length: int = 32,
        embedding: int = 32,
        hidden: int = 128,
        layers: int = 1,
        heterogeneity: float = 0.0,
        validation_windows: int = 256,
        seed: int = 0,
        device: str = "cpu",
        text: str | None = None,
    ) -> None:
        _check_sizes(self, length=length, embedding=embedding, hidden=hidden, layers=layers)
        text = shakespeare() if text is None else text
        if not isinstance(text, str):
            raise TypeError(f"CharLSTM.text must be a string, got {type(text).__name__}")
        if len(text) < 10 * (length + 1):
            raise ValueError(
                f"CharLSTM.text must have at least {10 * (length + 1)} characters for length {length}, got {len(text)}"
            )
        characters, tokens = np.unique(np.array(list(text)), return_inverse=True)
        train, validation = np.split(tokens.astype(np.int64), [len(tokens) * 9 // 10])
        super().__init__(
            build=partial(RecurrentModel, embedding=embedding, hidden=hidden, layers=layers, tied=False),
            train=train,
            validation=validation,
            vocabulary=len(characters),
            batch=batch,
            length=length,
            heterogeneity=heterogeneity,
            validation_windows=validation_windows,
            seed=seed,
            device=device,
        )


class WordLSTM(LanguageModel):
    """A word LSTM on train.txt and valid.txt (or .gz) of a folder, WikiText-2 unless given.

    CELGC's benchmark has the size embedding=400, hidden=1150, layers=3.
    """

    def __init__(
        self,
        *,
        path: str | Path | None = None,
        batch: int = 10,
        length: int = 35,
        embedding: int = 200,
        hidden: int = 200,
        layers: int = 2,
        tied: bool = True,
        dropout: float = 0.0,
        heterogeneity: float = 0.0,
        validation_windows: int = 64,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        _check_sizes(self, length=length, embedding=embedding, hidden=hidden, layers=layers)
        if check.fraction(self, "dropout", dropout) == 1:
            raise ValueError(f"WordLSTM.dropout must be below 1, got {dropout}")
        folder = data_folder("wikitext-2") if path is None else Path(path)
        train, validation, vocabulary = _read_corpus(folder, length)
        model = partial(RecurrentModel, embedding=embedding, hidden=hidden, layers=layers)
        super().__init__(
            build=partial(model, tied=tied, dropout=dropout),
            train=train,
            validation=validation,
            vocabulary=vocabulary,
            batch=batch,
            length=length,
            heterogeneity=heterogeneity,
            validation_windows=validation_windows,
            seed=seed,
            device=device,
        )


def _check_sizes(owner: object, **sizes: int) -> None:
    for name, value in sizes.items():
        check.whole(owner, name, value)


def _read_corpus(folder: Path, length: int) -> tuple[Tokens, Tokens, int]:
    ids: dict[str, int] = {}
    train = np.array([ids.setdefault(word, len(ids)) for word in _words(folder, "train", length)])
    unknown = ids.get("<unk>", -1)
    validation = np.array([ids.get(word, unknown) for word in _words(folder, "valid", length)])
    if validation.min() < 0:
        raise ValueError(f"{folder}: valid.txt has words that train.txt lacks, and there is no <unk>")
    return train, validation, len(ids)


def _words(folder: Path, name: str, length: int) -> list[str]:
    file = folder / f"{name}.txt"
    words = read_words(file if file.is_file() else file.with_suffix(".txt.gz"))
    if len(words) <= length:
        raise ValueError(f"{file} must have more than {length} words for WordLSTM.length {length}, got {len(words)}")
    return words


def _windows(tokens: Tensor, starts: Tokens, length: int) -> Tensor:
    """Windows of ``length`` tokens and the one after, as columns."""
    rows = np.arange(length + 1)[:, None] + starts
    return tokens[torch.from_numpy(rows).to(tokens.device)]
