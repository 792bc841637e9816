import gzip
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline

from flockstep.lda import LDA
from flockstep.lda.data import text

TEXTS = [
    "The ship sails the sea; 12 ships, one Sea.",
    "A ship and its sailors saw the sea_wolf and the harbour.",
    "Bread needs flour, water and an oven. Flour!",
    "The oven bakes bread of flour and water.",
    "",
    "Water, water: the sea is water, the ship is not. Ärger am Hafen.",
]
EVERY = text.Words(min_df=1, max_df=1.0)


def folder(tmp_path, texts=TEXTS):
    for number, content in enumerate(texts):
        place = tmp_path / f"part{number % 2}" / f"doc{number:02d}.txt"
        place.parent.mkdir(exist_ok=True)
        place.write_text(content, encoding="utf8")
    (tmp_path / ".hidden").write_bytes(b"\xff\xfe")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("hidden too")
    return tmp_path


def test_counts_equal_plain_python():
    counts, vocabulary, _ = text.counted(TEXTS, EVERY)
    assert counts.dtype == np.float32
    for row, content in zip(counts.toarray(), TEXTS, strict=True):
        cleaned = "".join(letter if letter.isalnum() or letter == "_" else " " for letter in content.lower())
        expected = Counter(word for word in cleaned.split() if len(word) > 1 and word[0].isalpha())
        assert {word: count for word, count in zip(vocabulary, row, strict=True) if count} == expected


def test_rare_words_frequent_words_and_stop_words():
    kept = set(text.counted(TEXTS)[1])
    assert {"ship", "oven", "bread", "flour"} <= kept
    assert not {"the", "ships", "hafen"} & kept
    assert "and" not in text.counted(TEXTS, text.Words(min_df=1, max_df=1.0, stop_words="english"))[1]
    assert "bread" not in text.counted(TEXTS, text.Words(min_df=1, max_df=1.0, stop_words=["bread"]))[1]
    assert len(text.counted(TEXTS, text.Words(min_df=1, max_df=1.0, most=3))[1]) == 3


def test_a_folder_is_read_in_order_of_paths(tmp_path):
    texts = text.Folder(folder(tmp_path))
    order = [0, 2, 4, 1, 3, 5]
    assert list(texts) == [TEXTS[number] for number in order] == list(texts)
    assert len(texts) == 6
    assert [texts.title(number) for number in (0, 3)] == ["part0/doc00.txt", "part1/doc01.txt"]
    assert texts.snippets([1, 5]) == {1: TEXTS[2], 5: TEXTS[5]}
    assert len(text.Folder(tmp_path, pattern="doc0[1-3].txt")) == 3


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.txt.gz"])
def test_a_file_has_a_document_per_line(tmp_path, name):
    content = "".join(f"{line}\n" for line in TEXTS).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    texts = text.Lines(tmp_path / name)
    assert [line.rstrip("\n") for line in texts] == TEXTS
    assert len(texts) == 6
    assert texts.title(0) == "line 1"
    assert texts.snippets([5, 0]) == {0: TEXTS[0], 5: TEXTS[5]}


def test_a_snippet_is_short_and_one_line(tmp_path):
    (tmp_path / "long.txt").write_text("word\n  " * 400)
    [snippet] = text.Folder(tmp_path).snippets([0]).values()
    assert len(snippet) == 240
    assert snippet.startswith("word word word")
    assert snippet.endswith("…")


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_new_texts_are_counted_with_the_old_words_in_blocks(monkeypatch, size):
    counts, vocabulary, how = text.counted(TEXTS, EVERY)
    monkeypatch.setattr(text, "_BLOCK", size)
    blocks = list(text.recounted(iter([*TEXTS, "unseen words only"]), vocabulary, how))
    assert [block.shape[0] for block in blocks] == [min(size, 7 - start) for start in range(0, 7, size)]
    whole = np.concatenate([block.toarray() for block in blocks])
    assert np.array_equal(whole, np.vstack([counts.toarray(), np.zeros(len(vocabulary))]))


def test_texts_are_read_one_at_a_time():
    living = []

    class Told(str):
        def __del__(self):
            living.append(-1)

    def reader():
        for content in TEXTS * 20:
            living.append(1)
            assert sum(living) <= 3
            yield Told(content)

    counts, _, _ = text.counted(reader(), EVERY)
    assert counts.shape[0] == 120


def test_mistakes_name_the_file(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path}: no file below it matches '\\*'"):
        text.Folder(tmp_path)
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        text.Folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"there is no file .*nowhere"):
        text.Lines(tmp_path / "nowhere")
    (tmp_path / "good.txt").write_text("fine")
    (tmp_path / "latin.txt").write_bytes("Ärger".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt is not utf-8 text: .* at byte 0"):
        list(text.Folder(tmp_path))
    assert list(text.Folder(tmp_path, encoding="latin-1")) == ["fine", "Ärger"]
    (tmp_path / "latin.txt").write_bytes("fine\nÄrger".encode("latin-1"))
    with pytest.raises(ValueError, match=r"line 2 of .*latin\.txt is not utf-8 text"):
        list(text.Lines(tmp_path / "latin.txt"))
    with pytest.raises(ValueError, match="there is no encoding 'klingon'"):
        list(text.Folder(tmp_path, encoding="klingon"))


@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
def test_a_pipeline_with_a_count_vectorizer_in_front(objective):
    steps = make_pipeline(
        CountVectorizer(), LDA(n_components=2, objective=objective, max_iter=5, batch_size=2, random_state=0)
    )
    mixtures = steps.fit_transform(TEXTS)
    assert mixtures.shape == (6, 2)
    assert mixtures.sum(axis=1) == pytest.approx(np.ones(6), rel=1e-5)
    assert steps.transform(TEXTS) == pytest.approx(mixtures, rel=1e-4)
    assert list(steps.get_feature_names_out()) == ["lda0", "lda1"]
    assert steps[-1].n_features_in_ == len(steps[0].get_feature_names_out())
