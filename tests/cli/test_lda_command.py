import csv
import json
import os
import re
import signal
import subprocess
import sys
import weakref

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from scipy import sparse

from flockstep.cli import lda
from flockstep.cli.lda import app
from flockstep.cli.topics import lda_work
from flockstep.lda import model_files
from flockstep.lda.core.topics import Update
from flockstep.lda.core.training import Trainer

SEA = ["ship", "sea", "harbour", "sailor", "wave"]
KITCHEN = ["bread", "oven", "flour", "water", "dough"]


def texts(count=60, seed=0):
    """Half of them of the sea and half of the kitchen."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice((SEA, KITCHEN)[number % 2], 12)) + f" [b]x{number}" for number in range(count)]


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(texts()):
        (folder / f"{number:03d}.txt").write_text(text)
    return folder


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def fit(source, out, *more):
    return invoke("fit", source, "--topics", 2, "--passes", 8, "--batch", 5, "--out", out, *more)


@pytest.mark.parametrize("objective", ["vb", "map"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_from_texts_to_topics_and_back(corpus, tmp_path, objective, jobs):
    out = tmp_path / "model"
    result = fit(corpus, out, "--objective", objective, "--jobs", jobs, "--held-out", 0.1)
    assert result.exit_code == 0, result.output
    assert "a folder of texts: 60 documents, 10 words, 720 tokens" in result.stderr
    assert "2 topics of 60 documents, learned in" in result.stdout
    assert "held-out perplexity" in result.stdout
    listed = {
        frozenset(line.split("   ")[-1].strip().split(", ")[:5]) for line in result.stdout.splitlines() if "%" in line
    }
    assert listed == {frozenset(SEA), frozenset(KITCHEN)}
    assert f"Model:  {out}\nTopics: {out / 'topics.csv'}\nPage:   {out / 'topics.html'}\n" in result.stdout
    names = ["model.json", "model.safetensors", "report.json", "topics.csv", "topics.html", "vocabulary.txt"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert (out / "vocabulary.txt").read_text().split() == sorted(SEA + KITCHEN)

    new = tmp_path / "new.txt"
    new.write_text("The SHIP and the sea, a wave!\nflour water oven bread\nnothing known\n")
    result = invoke("transform", out, new, "--out", tmp_path / "made" / "shares.csv")
    assert result.exit_code == 0, result.output
    assert f"Topics of 3 documents: {tmp_path / 'made' / 'shares.csv'}" in result.stdout
    with (tmp_path / "made" / "shares.csv").open() as file:
        header, *rows = list(csv.reader(file))
    assert header == ["document", "topic0", "topic1"]
    assert [row[0] for row in rows] == ["line 1", "line 2", "line 3"]
    shares = np.array([[float(share) for share in row[1:]] for row in rows])
    assert shares.sum(axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    assert shares[0].argmax() != shares[1].argmax()
    assert shares[:2].max(axis=1).min() > 0.6
    # Nothing is known of it but how often each topic is talked of; there are as many texts of one as of the other.
    assert shares[2] == pytest.approx([0.5, 0.5], abs=0.1)


@pytest.mark.slow
def test_one_seed_one_outcome(corpus, tmp_path):
    tables = []
    for seed in (1, 1, 2):
        assert fit(corpus, tmp_path / "out", "--seed", seed).exit_code == 0
        tables.append(model_files.load(tmp_path / "out").components_)
    assert np.array_equal(tables[0], tables[1])
    assert not np.array_equal(tables[0], tables[2])


def test_the_table_again(corpus, tmp_path):
    first = fit(corpus, tmp_path / "out", "--words", 3)
    again = invoke("topics", tmp_path / "out", "--words", 3)
    assert again.exit_code == 0, again.output
    rows = [[line.rstrip() for line in result.stdout.splitlines() if "%" in line] for result in (first, again)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 2
    assert "2 topics of 60 documents" in again.stdout
    (tmp_path / "out" / "report.json").unlink()
    without = invoke("topics", tmp_path / "out", "--words", 3)
    assert without.exit_code == 0
    assert "NPMI" in again.stdout
    assert "NPMI" not in without.stdout
    (tmp_path / "out" / "report.json").write_text("{")
    assert "report.json is damaged" in invoke("topics", tmp_path / "out").stderr


def test_the_report_and_the_page_tell_the_same(corpus, tmp_path):
    assert fit(corpus, tmp_path / "out").exit_code == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    page = (tmp_path / "out" / "topics.html").read_text(encoding="utf8")
    told = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])
    assert [topic["size"] for topic in told["topics"]] == pytest.approx(report["sizes"], rel=1e-5)
    assert [topic["coherence"] for topic in told["topics"]] == pytest.approx(report["npmi"], rel=1e-5)
    assert report["held_out_perplexity"] is None
    for topic in told["topics"]:
        for document in topic["documents"]:
            number = int(document["title"].removesuffix(".txt"))
            assert document["snippet"] == texts()[number]


def test_counts_without_words(tmp_path):
    counts = sparse.csr_array(np.random.default_rng(0).poisson(0.6, (30, 12)))
    sparse.save_npz(tmp_path / "counts.npz", counts)
    result = fit(tmp_path / "counts.npz", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "word 1" in result.stdout
    result = invoke("transform", tmp_path / "out", tmp_path / "counts.npz", "--out", tmp_path / "shares.csv")
    assert result.exit_code == 0, result.output
    with (tmp_path / "shares.csv").open() as file:
        shares = np.array([row[1:] for row in csv.reader(file)][1:], dtype=float)
    assert shares == pytest.approx(model_files.load(tmp_path / "out").transform(counts), rel=1e-4)


def test_a_file_too_large_to_hold_is_streamed(tmp_path, monkeypatch):
    counts = sparse.csr_array(np.random.default_rng(0).poisson(0.6, (30, 12)))
    sparse.save_npz(tmp_path / "counts.npz", counts, compressed=False)
    monkeypatch.setattr("flockstep.lda.data.sources._HELD", 0)
    result = fit(tmp_path / "counts.npz", tmp_path / "out", "--held-out", 0.2)
    assert result.exit_code == 0, result.output
    assert "too large to hold: read again at every pass" in result.stderr
    assert "2 topics of 30 documents" in result.stdout
    assert "held-out perplexity" in result.stdout


def test_without_scikit_learn_there_is_one_line_to_type(monkeypatch):
    for name in [
        name for name in sys.modules if name.startswith("flockstep.lda") or name == "flockstep.cli.topics.lda_work"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("flockstep.cli.topics.lda_work")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    result = invoke("topics", "anywhere")
    assert result.exit_code == 1
    assert result.stderr == 'topic models need scikit-learn: pip install "flockstep[lda]"\n'


def test_ctrl_c_saves_what_was_learned(corpus, tmp_path, monkeypatch):
    assert fit(corpus, tmp_path / "out").exit_code == 0
    learned = []

    def some(model, kept, apart, nodes):
        model.partial_fit(kept)
        learned.append(model.components_.copy())
        raise KeyboardInterrupt

    monkeypatch.setattr(lda_work, "_learn", some)
    result = fit(corpus, tmp_path / "out")
    assert result.exit_code == 130
    assert (
        f"Stopped by Ctrl-C. What was learned so far is saved: flockstep lda topics {tmp_path / 'out'}" in result.stderr
    )
    assert result.stdout == ""
    assert np.array_equal(model_files.load(tmp_path / "out").components_, learned[0])
    # Nothing is left of the model that was there before.
    assert not (tmp_path / "out" / "topics.html").exists()
    assert not (tmp_path / "out" / "report.json").exists()
    assert invoke("topics", tmp_path / "out").exit_code == 0


def test_a_thread_that_still_learns_does_not_spoil_what_is_saved(corpus, tmp_path, monkeypatch):
    """Whoever still learns, here at the worst moment."""
    words, even = np.arange(10, dtype=np.int32), np.ones((10, 2), np.float32)
    tables, learned, save = [], [], model_files.save

    def some(model, kept, apart, nodes):
        model.partial_fit(kept)
        tables.append(model.topics_)
        learned.append(model.components_.copy())
        raise KeyboardInterrupt

    def late(*arguments, **more):
        tables[0].fold(Update(log_decay=-0.5, words=words, statistics=even * 1e3, totals=np.full(2, 1e4)))
        return save(*arguments, **more)

    monkeypatch.setattr(lda_work, "_learn", some)
    monkeypatch.setattr(model_files, "save", late)
    assert fit(corpus, tmp_path / "out").exit_code == 130
    model = model_files.load(tmp_path / "out")
    assert np.array_equal(model.components_, learned[0])
    assert model.topics_.totals == pytest.approx(model.topics_.rows.sum(axis=0, dtype=np.float64), rel=1e-9)


def test_ctrl_c_before_anything_was_learned(corpus, tmp_path, monkeypatch):
    def nothing(model, kept, apart, nodes):
        raise KeyboardInterrupt

    monkeypatch.setattr(lda_work, "_learn", nothing)
    result = fit(corpus, tmp_path / "out")
    assert result.exit_code == 130
    assert "before anything was learned; nothing is saved" in result.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def struck(monkeypatch):
    """Ctrl-C in the callback of a weak reference, where Python throws exceptions away: threads that end have some."""
    run, times = Trainer.run, [0]

    class Gone:
        pass

    def unlucky(self, batches, **more):
        run(self, batches, **more)
        if not times[0]:
            gone = Gone()
            reference = weakref.ref(gone, lambda _: signal.raise_signal(signal.SIGINT))
            del gone
            assert reference() is None
        times[0] += 1

    monkeypatch.setattr(Trainer, "run", unlucky)
    return times


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_where_an_exception_goes_nowhere(corpus, tmp_path, struck, jobs):
    # Held-out documents are looked at after every pass, for which threads are started anew.
    result = fit(corpus, tmp_path / "out", "--held-out", 0.2, "--jobs", jobs)
    assert result.exit_code == 130
    assert "Ctrl-C: stopping and saving; once more stops at once." in result.stderr
    assert "What was learned so far is saved" in result.stderr
    # The second pass was begun, and stopped before its first batch.
    assert struck == [2]
    assert model_files.load(tmp_path / "out").n_components == 2


def test_a_second_ctrl_c_stops_at_once(corpus, tmp_path, monkeypatch):
    def impatient(self, batches, **more):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        pytest.fail("it goes on")

    monkeypatch.setattr(Trainer, "run", impatient)
    result = fit(corpus, tmp_path / "out")
    assert result.exit_code == 130
    assert "Stopped at once; nothing is saved." in result.stderr
    assert list((tmp_path / "out").iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_after_learning(corpus, tmp_path, monkeypatch):
    def stopped(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(lda_work, "survey", stopped)
    result = fit(corpus, tmp_path / "out")
    assert result.exit_code == 130
    assert "The model is saved" in result.stderr
    assert model_files.load(tmp_path / "out").n_components == 2


# Says when the first batch of ours is in and when the main thread waits for others, if there are any: then there is
# something to lose.
PROGRAM = """
import os
from flockstep.cli.lda import app
from flockstep.lda.core import training
from flockstep.lda.core.topics import Topics
said = set()
def say(word):
    if word not in said:
        said.add(word)
        os.write(2, f"{word}\\n".encode())
fold, wait = Topics.fold, training.wait
def told_fold(self, update):
    fold(self, update)
    if self.n_words == 10:
        say("folded")
def told_wait(*arguments, **more):
    say("waiting")
    return wait(*arguments, **more)
Topics.fold, training.wait = told_fold, told_wait
app()
"""


def interrupted(program, signs, folder, *arguments):
    """Ctrl-C, as a terminal sends it to all of a command's processes, once it has said these words; what it saved."""
    command = [sys.executable, "-c", program, "fit", *arguments, "--out", folder, "--topics", "3", "--batch", "5"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            seen = set()
            while not signs <= seen and (line := process.stderr.readline()):
                seen.add(line.strip())
            assert signs <= seen
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "What was learned so far is saved" in err
    assert out == ""
    model = model_files.load(folder)
    assert np.isfinite(model.components_).all()
    assert model.topics_.totals == pytest.approx(model.topics_.rows.sum(axis=0), rel=1e-4)
    return err


@pytest.mark.cases(test=1)
@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "signs"), [("1", {"folded"}), ("2", {"folded", "waiting"})])
def test_ctrl_c_for_real(corpus, tmp_path, jobs, signs):
    told = interrupted(PROGRAM, signs, tmp_path / "out", corpus, "--passes", "100000000", "--jobs", jobs)
    assert "Ctrl-C: stopping and saving; once more stops at once." in told


# The first row is from before the first batch.
ON_NODES = """
import os
from flockstep.cli.topics import lda_work
from flockstep.cli.lda import app
fit = lda_work.fit_on_nodes
def told_fit(model, counts, *, callback, **others):
    def told(row):
        callback(row)
        if row.step > 0:
            os.write(2, b"learning\\n")
    fit(model, counts, rows=1000, callback=told, **others)
lda_work.fit_on_nodes = told_fit
app()
"""


@pytest.mark.thorough
def test_ctrl_c_for_real_on_nodes(corpus, tmp_path):
    endless = ("--passes", "100000", "--held-out", "0.2", "--nodes", "2")
    told = interrupted(ON_NODES, {"learning"}, tmp_path / "out", corpus, *endless)
    assert "Ctrl-C: stopping and saving; once more stops at once." in told


MISTAKES = [
    (["fit", "EMPTY"], "there are no documents in"),
    (["fit", "nowhere"], "there is neither a file nor a folder nowhere"),
    (["fit", "CORPUS", "--topics", "0"], "fit.topics must be at least 1, got 0"),
    (["fit", "CORPUS", "--jobs", "0"], "fit.jobs must be at least 1, got 0"),
    (["fit", "CORPUS", "--passes", "0"], "fit.passes must be at least 1, got 0"),
    (["fit", "CORPUS", "--batch", "0"], "fit.batch must be at least 1, got 0"),
    (["fit", "CORPUS", "--held-out", "2"], "fit.held_out must be between 0 and 1, got 2"),
    (["fit", "CORPUS", "--held-out", "1"], "split.share must leave documents to learn from, got 1"),
    (["fit", "CORPUS", "--stop-words", "klingon"], "--stop-words must be 'english' or a file with a word per line"),
    (["fit", "CORPUS", "--min-df", "59", "--max-df", "60"], "no terms remain. Try a lower min_df or a higher max_df"),
    (["fit", "CORPUS", "--encoding", "klingon"], "there is no encoding 'klingon'"),
    (["fit", "CORPUS", "--pattern", "*.md"], "no file below it matches '*.md'"),
    (["transform", "EMPTY", "CORPUS"], "there is no topic model in"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_each_mistake_gets_one_sentence_and_no_traceback(corpus, tmp_path, arguments, sentence):
    (tmp_path / "empty").mkdir()
    places = {"CORPUS": corpus, "EMPTY": tmp_path / "empty"}
    result = invoke(*[places.get(argument, argument) for argument in arguments], "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_stop_words_from_a_file(corpus, tmp_path):
    (tmp_path / "stop.txt").write_text("ship\n\nbread\n")
    assert fit(corpus, tmp_path / "out", "--stop-words", tmp_path / "stop.txt").exit_code == 0
    assert not {"ship", "bread"} & set((tmp_path / "out" / "vocabulary.txt").read_text().split())


def test_an_interrupted_transform_leaves_no_half_a_file(corpus, tmp_path):
    assert fit(corpus, tmp_path / "out").exit_code == 0
    (tmp_path / "new.txt").write_bytes(b"ship\n\xff\n")
    result = invoke("transform", tmp_path / "out", tmp_path / "new.txt", "--out", tmp_path / "shares.csv")
    assert result.exit_code == 2
    assert "line 2 of" in result.stderr
    assert not list(tmp_path.glob("shares.csv*"))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], ["fit", "transform", "topics", "flockstep lda fit my-texts/ --topics 50", "topics.html"]),
        (["fit"], ["Examples", "--objective", "--held-out", "--stop-words", "topics.csv", "Ctrl-C"]),
        (["transform"], ["Examples", "doc_topics.csv", "--out"]),
        (["topics"], ["Examples", "--words"]),
    ],
)
def test_every_command_teaches(command, words):
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "100", "TERM": "dumb"})
    assert result.exit_code == 0
    told = " ".join(result.stdout.split())
    assert all(word in told for word in words)


def test_the_options_in_the_examples_exist():
    shown = " ".join(lda.FIT_HELP.split())
    known = CliRunner().invoke(app, ["fit", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    for option in set(re.findall(r"--[a-z-]+", shown)):
        assert option in known


@pytest.mark.slow
def test_several_processes_find_the_topics_too(corpus, tmp_path):
    result = fit(corpus, tmp_path / "out", "--nodes", 2, "--held-out", 0.1, "--objective", "map")
    assert result.exit_code == 0, result.output
    listed = {
        frozenset(line.split("   ")[-1].strip().split(", ")[:5]) for line in result.stdout.splitlines() if "%" in line
    }
    assert listed == {frozenset(SEA), frozenset(KITCHEN)}


def test_no_nodes_at_all(corpus, tmp_path):
    result = fit(corpus, tmp_path / "out", "--nodes", 0)
    assert result.exit_code != 0
    assert "fit.nodes must be at least 1, got 0" in result.stderr
