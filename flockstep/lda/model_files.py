"""A fitted model as a folder of plain files, and back. Never pickle.

    model.json           settings, what was learned besides the table, versions, and checksums of the other files
    model.safetensors    the table of pseudo-counts (words by topics, prior left out) and its totals
    vocabulary.txt       the words, one a line, where they are known

What is loaded transforms as what was saved did, to the bit, and learns on with ``partial_fit`` as it would have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from flockstep.lda.core.priors import MixturePrior, WordPrior
from flockstep.lda.core.topics import Topics
from flockstep.lda.estimator import LDA
from flockstep.lda.words import words_of

_FORMAT, _VERSION = "flockstep.lda", 3
_PLAIN, _TENSORS, _WORDS = "model.json", "model.safetensors", "vocabulary.txt"
_PIECE = 2**20
_REQUIRED = {"topics", "words", "settings", "learned", "prior", "word_prior", "random", "named", "text", "checksums"}


@dataclass(frozen=True)
class Saved:
    """What a folder holds."""

    model: LDA
    vocabulary: list[str] | None
    text: dict[str, Any] | None
    """How texts were turned into words, where they were."""


def save(
    folder: str | Path, model: LDA, vocabulary: Iterable[str] | None = None, *, text: Mapping[str, Any] | None = None
) -> Path:
    """Write a fitted model as a folder of plain files; one that is there is replaced when the new one is complete.

    Settings that are objects, such as a random generator, are not kept: the loaded model has their defaults. Their
    names are in model.json.

    Args:
        folder: Where to; it is made where it is missing.
        model: The fitted ``LDA``.
        vocabulary: The word of every column. None: the names that the model was fitted with, if any.
        text: How texts were turned into words, as plain values, to be kept beside. None: nothing is.

    Returns:
        The folder.

    Example:
        save("topics", model, vectorizer.get_feature_names_out())
        model = load("topics")
    """
    if not hasattr(model, "topics_"):
        raise ValueError("save.model must be fitted")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    named = hasattr(model, "feature_names_in_")
    words = words_of(model, vocabulary) if vocabulary is not None or named else None
    learned, arrays, random = _learned(model)
    # Under other names first, so that an interrupted save leaves the old model as it was.
    new = {name: folder / f"{name}.new" for name in (_TENSORS, *[_WORDS] * (words is not None), _PLAIN)}
    prior, of_words = model._prior, model._word_prior
    arrays |= {"rows": model.topics_.settle(), "totals": model.topics_.totals, "alpha": prior.alpha, **prior.window()}
    save_file(arrays, new[_TENSORS])
    if words is not None:
        new[_WORDS].write_bytes(_lines(words))
    settings, left_out = _plain_only(model.get_params(deep=False))
    parsed = {
        "format": _FORMAT,
        "version": _VERSION,
        "made_with": {name: metadata.version(name) for name in ("flockstep", "numpy", "scikit-learn")},
        "topics": model.topics_.n_topics,
        "words": model.topics_.n_words,
        "settings": settings,
        "settings_left_out": left_out,
        "learned": learned,
        "prior": {"learned": prior.learned, "seen": prior.seen, "fresh": prior.fresh},
        "word_prior": {"now": model.topics_.prior, "learned": of_words.learned, "seen": of_words.seen},
        "random": random,
        "named": named,
        "text": None if text is None else dict(text),
        "checksums": {name: _checksum(path) for name, path in new.items() if name != _PLAIN},
    }
    new[_PLAIN].write_text(json.dumps(parsed, indent=1) + "\n", encoding="utf8")
    # Tensors are written for their owner alone; a model is for whoever may read the folder's other files.
    new[_TENSORS].chmod(new[_PLAIN].stat().st_mode)
    for name, path in new.items():
        path.replace(folder / name)
    return folder


def load(folder: str | Path) -> LDA:
    """The model that ``save`` wrote: it transforms as that one did, to the bit, and learns on as it would have.

    ``flockstep.lda.model_files.read`` gives the words, too.

    Args:
        folder: What was given to ``save``. Files that are missing or damaged raise ValueError, which names them.

    Returns:
        The fitted ``LDA``.

    Example:
        model = load("topics")
        mixtures = model.transform(counts)
    """
    return read(folder).model


def read(folder: str | Path) -> Saved:
    """All that a folder holds; whatever is missing, damaged or another program's is an error that names the file."""
    folder = Path(folder)
    parsed = _parsed(folder)
    for name, expected in parsed["checksums"].items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing, though {_PLAIN} beside it names it")
        if _checksum(path) != expected:
            raise ValueError(
                f"{path} is damaged, or belongs to another model: it is not what {_PLAIN} was written with"
            )
    words = (folder / _WORDS).read_bytes().decode("utf8").split("\n")[:-1] if _WORDS in parsed["checksums"] else None
    if words is not None and len(words) != parsed["words"]:
        raise ValueError(f"{folder / _WORDS} has {len(words)} words, but the model {parsed['words']}")
    return Saved(_rebuilt(folder, parsed, words), words, parsed["text"])


def _parsed(folder: Path) -> dict[str, Any]:
    path = folder / _PLAIN
    if not path.is_file():
        raise ValueError(f"there is no topic model in {folder}: it has no {_PLAIN}")
    try:
        parsed = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(parsed, dict) or parsed.get("format") != _FORMAT:
        raise ValueError(f"{path} is not the file of a topic model of ours")
    if parsed.get("version") != _VERSION:
        raise ValueError(f"{path} has version {parsed.get('version')!r} of the format; this flockstep reads {_VERSION}")
    missing = _REQUIRED - set(parsed)
    if missing or _TENSORS not in parsed["checksums"]:
        raise ValueError(f"{path} is damaged: it lacks {', '.join(sorted(missing)) or _TENSORS}")
    return parsed


def _rebuilt(folder: Path, parsed: dict[str, Any], words: list[str] | None) -> LDA:
    try:
        model = LDA(**parsed["settings"])
    except TypeError as error:
        raise ValueError(f"{folder / _PLAIN} has settings that this flockstep does not know: {error}") from None
    arrays = _arrays(folder / _TENSORS, topics=parsed["topics"], words=parsed["words"])
    for name, value in parsed["learned"].items():
        setattr(model, name, value)
    of_words = parsed["word_prior"]
    model._word_prior = WordPrior(of_words["now"], learned=bool(of_words["learned"]))
    model._word_prior.seen = float(of_words["seen"])
    topics = Topics(arrays.pop("rows"), prior=of_words["now"], objective=model.objective)
    topics.totals = arrays.pop("totals")
    model.topics_ = topics
    model._prior = MixturePrior(arrays.pop("alpha"), learned=bool(parsed["prior"]["learned"]))
    model._prior.seen, model._prior.fresh = int(parsed["prior"]["seen"]), int(parsed["prior"]["fresh"])
    model._prior.look_at(arrays)
    for name, array in arrays.items():
        setattr(model, name, array)
    for name, state in parsed["random"].items():
        generator = np.random.default_rng()
        generator.bit_generator.state = state
        setattr(model, name, generator)
    if parsed["named"]:
        model.feature_names_in_ = np.array(words, dtype=object)
    return model


def _arrays(path: Path, *, topics: int, words: int) -> dict[str, NDArray[Any]]:
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    found = {name: array.shape for name, array in arrays.items()}
    if found.get("rows") != (words, topics) or found.get("totals") != (topics,) or found.get("alpha") != (topics,):
        raise ValueError(f"{path} does not hold {words} words by {topics} topics, but {found}")
    return arrays


def _learned(model: LDA) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, Any]]:
    """What fitting left on the model: plain values, arrays, states of generators. The table goes its own way."""
    plain: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    random: dict[str, Any] = {}
    for name, value in vars(model).items():
        if name in model.get_params(deep=False) or name in ("topics_", "feature_names_in_"):
            continue
        if isinstance(value, np.random.RandomState):
            continue
        if isinstance(value, np.random.Generator):
            random[name] = value.bit_generator.state
        elif name.endswith("_") and isinstance(value, np.ndarray):
            arrays[name] = value
        elif name.endswith("_"):
            plain[name] = value.item() if isinstance(value, np.generic) else value
    return plain, arrays, random


def _plain_only(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
    kept = {
        name: value for name, value in values.items() if value is None or isinstance(value, bool | int | float | str)
    }
    return kept, sorted(set(values) - set(kept))


def _lines(words: list[str]) -> bytes:
    for word in words:
        if "\n" in word:
            raise ValueError(f"a word of the vocabulary has a line break and cannot be saved: {word!r}")
    return "".join(f"{word}\n" for word in words).encode("utf8")


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
