import json

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from scipy import sparse

from flockstep.lda import LDA, model_files

WORDS = [*(f"w{i}" for i in range(9)), "ünïcode", "line\u2028separator", "with space"]


def corpus(documents=40, seed=0):
    return sparse.csr_matrix(np.random.default_rng(seed).poisson(0.7, (documents, len(WORDS))).astype(np.float64))


def fitted(topics=3, **more):
    settings = {"batch_size": 7, "max_iter": 2, "random_state": 0, **more}
    return LDA(n_components=topics, **settings).fit(corpus())


@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
@pytest.mark.parametrize("topics", [1, 2, 5])
def test_a_loaded_model_transforms_to_the_bit_as_the_saved_one(tmp_path, topics, objective):
    model = fitted(topics, objective=objective, doc_topic_prior=0.2)
    model_files.save(tmp_path / "model", model, WORDS, text={"lowercase": True})
    saved = model_files.read(tmp_path / "model")
    assert saved.vocabulary == WORDS
    assert saved.text == {"lowercase": True}
    assert np.array_equal(saved.model.transform(corpus(seed=1)), model.transform(corpus(seed=1)))
    assert np.array_equal(saved.model.components_, model.components_)
    assert saved.model.get_params() == model.get_params()
    assert saved.model.perplexity(corpus()) == model.perplexity(corpus())
    assert list(saved.model.get_feature_names_out()) == list(model.get_feature_names_out())


def test_a_loaded_model_learns_on_as_the_saved_one(tmp_path):
    model = fitted(n_jobs=1, total_samples=80)
    model_files.save(tmp_path, model)
    other = model_files.load(tmp_path)
    for seed in (2, 3):
        model.partial_fit(corpus(seed=seed))
        other.partial_fit(corpus(seed=seed))
    assert np.array_equal(model.components_, other.components_)
    assert model.n_batch_iter_ == other.n_batch_iter_


def test_without_words_there_is_no_file_of_words(tmp_path):
    model_files.save(tmp_path, fitted())
    assert model_files.read(tmp_path).vocabulary is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]


def test_names_of_columns_come_back(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(corpus().toarray(), columns=WORDS)
    model = LDA(n_components=2, batch_size=7, max_iter=1, random_state=0).fit(frame)
    model_files.save(tmp_path, model)
    saved = model_files.read(tmp_path)
    assert list(saved.model.feature_names_in_) == saved.vocabulary == WORDS
    assert np.array_equal(saved.model.transform(frame), model.transform(frame))


def test_settings_that_are_objects_are_left_out_and_named(tmp_path):
    model_files.save(tmp_path, fitted(random_state=np.random.RandomState(1)))
    assert model_files.load(tmp_path).random_state is None
    assert json.loads((tmp_path / "model.json").read_text())["settings_left_out"] == ["random_state"]


def test_saving_again_replaces(tmp_path):
    model_files.save(tmp_path, fitted(3), WORDS)
    model = fitted(5)
    model_files.save(tmp_path, model, WORDS)
    assert np.array_equal(model_files.load(tmp_path).components_, model.components_)
    assert not list(tmp_path.glob("*.new"))


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match=r"save\.model must be fitted"):
        model_files.save(tmp_path, LDA())
    with pytest.raises(ValueError, match=r"has a line break .* 'two\\nlines'"):
        model_files.save(tmp_path, fitted(), ["two\nlines", *WORDS[1:]])
    with pytest.raises(ValueError, match="has 2 words, but the model was fitted with 12"):
        model_files.save(tmp_path, fitted(), ["two", "words"])
    assert not (tmp_path / "model.json").exists()


def spoil_text(path, **changes):
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, **changes}))


@pytest.mark.parametrize(
    ("name", "spoil", "sentence"),
    [
        ("model.json", lambda p: p.unlink(), "there is no topic model in"),
        ("model.json", lambda p: p.write_bytes(p.read_bytes()[:100]), r"model\.json is damaged"),
        ("model.json", lambda p: p.write_bytes(b"\xff\xfe\xfa"), r"model\.json is damaged"),
        ("model.json", lambda p: p.write_text("[1]"), r"model\.json is not the file of a topic model of ours"),
        ("model.json", lambda p: spoil_text(p, format="x"), r"model\.json is not the file of a topic model of ours"),
        ("model.json", lambda p: spoil_text(p, version=99), r"model\.json has version 99 of the format; .* reads 3"),
        ("model.json", lambda p: spoil_text(p, settings={"x": 1}), r"model\.json has settings .* not know.*'x'"),
        ("model.json", lambda p: spoil_text(p, topics=4), r"safetensors does not hold 12 words by 4 topics"),
        ("model.json", lambda p: spoil_text(p, words=13), r"vocabulary\.txt has 12 words, but the model 13"),
        ("model.json", lambda p: p.write_text('{"format": "flockstep.lda", "version": 3}'), "damaged: it lacks"),
        ("model.safetensors", lambda p: p.unlink(), r"model\.safetensors is missing"),
        ("model.safetensors", lambda p: p.write_bytes(p.read_bytes()[:-1]), r"model\.safetensors is damaged"),
        ("model.safetensors", lambda p: p.write_bytes(b"not tensors"), r"model\.safetensors is damaged"),
        ("vocabulary.txt", lambda p: p.unlink(), r"vocabulary\.txt is missing"),
        ("vocabulary.txt", lambda p: p.write_text("other\n" * 12), r"vocabulary\.txt is damaged"),
    ],
)
def test_a_damaged_or_foreign_file_is_named(tmp_path, name, spoil, sentence):
    model_files.save(tmp_path, fitted(), WORDS)
    spoil(tmp_path / name)
    with pytest.raises(ValueError, match=sentence):
        model_files.load(tmp_path)


def test_a_file_that_is_no_tensors_though_its_checksum_is_right(tmp_path):
    model_files.save(tmp_path, fitted(), WORDS)
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    told = json.loads((tmp_path / "model.json").read_text())
    told["checksums"]["model.safetensors"] = model_files._checksum(tmp_path / "model.safetensors")
    (tmp_path / "model.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        model_files.load(tmp_path)
