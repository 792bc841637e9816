import gzip
import re

import numpy as np
import pytest

from flockstep.workloads.datasets import data_folder, read_libsvm, read_words, shakespeare


def folder(name):
    try:
        return data_folder(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def written(tmp_path, text):
    path = tmp_path / "data.txt"
    path.write_text(text)
    return path


def test_the_variable_comes_first(tmp_path, monkeypatch):
    (tmp_path / "libsvm").mkdir()
    monkeypatch.setenv("FLOCKSTEP_DATA", str(tmp_path))
    assert data_folder("libsvm") == tmp_path / "libsvm"


def test_without_the_variable_a_shared_folder_is_used(tmp_path, monkeypatch):
    (tmp_path / "shared" / "data" / "libsvm").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.delenv("FLOCKSTEP_DATA", raising=False)
    monkeypatch.chdir(tmp_path / "here")
    assert data_folder("libsvm").samefile(tmp_path / "shared" / "data" / "libsvm")


@pytest.mark.parametrize("variable", [None, "elsewhere"])
def test_a_missing_folder_says_what_to_do(tmp_path, monkeypatch, variable):
    monkeypatch.delenv("FLOCKSTEP_DATA", raising=False)
    if variable:
        monkeypatch.setenv("FLOCKSTEP_DATA", variable)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="set the environment variable FLOCKSTEP_DATA") as caught:
        data_folder("libsvm")
    assert "\n" not in str(caught.value)


def test_libsvm(tmp_path):
    text = "+1 1:0.5 3:-2\n\n-1 2:1e-1  # a remark\n-1\n"
    features, labels = read_libsvm(written(tmp_path, text))
    assert features.dtype == labels.dtype == np.float32
    assert np.array_equal(features, np.float32([[0.5, 0, -2], [0, 0.1, 0], [0, 0, 0]]))
    assert labels.tolist() == [1, -1, -1]


def test_libsvm_compressed_and_wider(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"1 1:1\n0 2:1\n"))
    assert read_libsvm(path)[0].shape == (2, 2)
    assert read_libsvm(path, features=5)[0].shape == (2, 5)
    with pytest.raises(ValueError, match="has 2 features, but at most 1 were expected"):
        read_libsvm(path, features=1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("-1 +1 -1", [-1, 1, -1]),
        ("0 1 1", [-1, 1, 1]),
        ("2 1 2", [1, -1, 1]),
        ("1 1", [1, 1]),
        ("0 0", [-1, -1]),
    ],
)
def test_labels_become_signs(tmp_path, given, expected):
    text = "".join(f"{label} 1:1\n" for label in given.split())
    assert read_libsvm(written(tmp_path, text))[1].tolist() == expected


@pytest.mark.parametrize(
    "line",
    [
        "1 2",
        "1 2:",
        "1 :2",
        "1 a:2",
        "1 2:b",
        "x 1:1",
        "1 0:1",
        "1 1:nan",
        "1 2:1 1:1",
        "1 1:1 1:2",
        "1 1:2:3",
    ],
)
def test_a_malformed_line_is_named(tmp_path, line):
    path = written(tmp_path, f"1 1:1\n{line}\n")
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 2: expected 'label index:value ...'")) as caught:
        read_libsvm(path)
    assert repr(line) in str(caught.value)


def test_other_labels_and_no_data_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"labels must be -1/\+1, 0/1 or 1/2, got 1, 3"):
        read_libsvm(written(tmp_path, "1 1:1\n3 1:1\n"))
    with pytest.raises(ValueError, match="no data in this file"):
        read_libsvm(written(tmp_path, "\n"))


@pytest.mark.parametrize(
    ("name", "shape", "positive"),
    [("a9a", (32_561, 123), 7_841), ("phishing", (11_055, 68), 6_157), ("mushrooms", (8_124, 112), 3_916)],
)
@pytest.mark.slow
def test_real_files(name, shape, positive):
    features, labels = read_libsvm(folder("libsvm") / f"{name}.gz")
    assert features.shape == shape
    assert set(labels) == {-1, 1}
    assert (labels == 1).sum() == positive


def test_shakespeare():
    text = shakespeare()
    assert len(text) == 1_115_394
    assert len(set(text)) == 65
    assert text.startswith("First Citizen:")


def test_words_end_lines_with_eos(tmp_path):
    assert read_words(written(tmp_path, " a b \n\n c\n")) == ["a", "b", "<eos>", "<eos>", "c", "<eos>"]


def test_wikitext_has_its_known_size():
    assert len(read_words(folder("wikitext-2") / "valid.txt.gz")) == 217_646
