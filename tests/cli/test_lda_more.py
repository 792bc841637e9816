"""``flockstep lda`` on tables, with words given, in several sittings, and over numbers of topics."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from flockstep.cli.lda import app
from flockstep.lda import model_files

SEA = ["ship", "sea", "harbour", "sailor", "wave"]
KITCHEN = ["bread", "oven", "flour", "water", "dough"]


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["title", "body"])
        writer.writerows([f"t{k}", " ".join(rng.choice((SEA, KITCHEN)[k % 2], 12))] for k in range(60))
    return tmp_path / "texts.csv"


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def fit(source, out, *more):
    return invoke("fit", source, "--topics", 2, "--batch", 5, "--column", "body", "--out", out, *more)


def test_a_column_of_a_table(table, tmp_path):
    result = fit(table, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "60 documents, 10 words, 720 tokens" in result.stderr
    assert (tmp_path / "out" / "vocabulary.txt").read_text().split() == sorted(SEA + KITCHEN)
    assert "row 1" in (tmp_path / "out" / "topics.html").read_text(encoding="utf8")
    lines = tmp_path / "new.jsonl"
    lines.write_text("".join(json.dumps({"n": k, "text": text}) + "\n" for k, text in enumerate(["ship wave", "oven"])))
    result = invoke("transform", tmp_path / "out", lines, "--column", "text", "--out", tmp_path / "shares.csv")
    assert result.exit_code == 0, result.output
    result = invoke("transform", tmp_path / "out", lines, "--out", tmp_path / "shares.csv")
    assert "columns n, text: name the one that has the texts (--column)" in result.stderr
    result = invoke("fit", table, "--out", tmp_path / "other")
    assert "columns title, body: name the one that has the texts (--column)" in result.stderr
    assert result.exit_code == 2


def test_pairs_of_words(table, tmp_path):
    result = fit(table, tmp_path / "out", "--ngrams", 2, "--min-df", 1)
    assert result.exit_code == 0, result.output
    words = (tmp_path / "out" / "vocabulary.txt").read_text().splitlines()
    assert {"ship", "oven"} <= set(words)
    assert sum(" " in word for word in words) > 20
    result = invoke("transform", tmp_path / "out", table, "--column", "body", "--out", tmp_path / "shares.csv")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("first", ["sea", "oven"])
def test_topics_begin_with_words_that_were_given(table, tmp_path, first):
    (tmp_path / "seeds.txt").write_text(f"{first}\n")
    assert fit(table, tmp_path / "out", "--seeds", tmp_path / "seeds.txt").exit_code == 0
    saved = model_files.read(tmp_path / "out")
    top = {saved.vocabulary[k] for k in saved.model.components_[0].argsort()[-5:]}
    assert top == set(SEA if first == "sea" else KITCHEN)
    (tmp_path / "seeds.txt").write_text("whale\n")
    result = fit(table, tmp_path / "out", "--seeds", tmp_path / "seeds.txt")
    assert "seeds.txt has 'whale', which is no word of the corpus" in result.stderr


def test_in_several_sittings(table, tmp_path):
    out = tmp_path / "out"
    assert fit(table, out, "--passes", 2).exit_code == 0
    result = fit(table, out, "--passes", 5, "--resume", "--held-out", 0.1)
    assert result.exit_code == 0, result.output
    model = model_files.load(out)
    assert (model.n_iter_, model.warm_start) == (5, False)
    assert model.n_batch_iter_ == 1 + 2 * 12 + 3 * 11
    result = fit(table, out, "--passes", 5, "--resume")
    assert "has made 5 passes already: ask for more (--passes)" in result.stderr
    assert "leave --nodes and --seeds out" in fit(table, out, "--resume", "--nodes", 2).stderr
    assert "there is no topic model in" in fit(table, tmp_path / "nothing", "--resume").stderr


@pytest.mark.slow
def test_how_many_topics(table, tmp_path):
    out = tmp_path / "scan"
    result = invoke("scan", table, "--column", "body", "--topics", "2,3,20", "--passes", 3, "--out", out)
    assert result.exit_code == 0, result.output
    with (out / "scan.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["topics"]) for row in rows] == [2, 3, 20]
    assert all(float(row["perplexity"]) > 1 and -1 <= float(row["npmi"]) <= 1 for row in rows)
    assert (out / "scan.png").read_bytes().startswith(b"\x89PNG")
    assert "How many topics?" in result.stdout
    assert "3 topics: held-out perplexity" in result.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--topics", "2;3"], "--topics must be numbers with commas between"),
        (["--topics", "0"], "scan.topics must be"),
        (["--held-out", "0"], "held_out must be above 0"),
    ],
)
def test_a_scan_that_cannot_be(table, tmp_path, more, said):
    result = invoke("scan", table, "--column", "body", "--out", tmp_path / "scan", *more)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_scan_that_is_stopped_keeps_what_is_done(table, tmp_path, monkeypatch):
    from flockstep.lda import LDA
    from flockstep.lda.evaluate import scan

    made = []

    class Stops(LDA):
        def fit(self, *given, **how):
            if made:
                raise KeyboardInterrupt
            made.append(self)
            return super().fit(*given, **how)

    monkeypatch.setattr(scan, "LDA", Stops)
    result = invoke("scan", table, "--column", "body", "--topics", "2,3", "--passes", 1, "--out", tmp_path / "scan")
    assert result.exit_code == 130, result.output
    assert "Stopped by Ctrl-C after 1 of 2" in result.stderr
    assert (tmp_path / "scan" / "scan.png").exists()
