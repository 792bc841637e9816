import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from flockstep.workloads.datasets import data_folder
from flockstep.workloads.language import CharLSTM, LanguageModel, RecurrentModel, WordLSTM
from flockstep.workloads.workload import Workload

torch.set_num_threads(1)

TEXT = "".join(np.random.default_rng(0).choice(list("abcdef"), 4000))


def char(**changes):
    small = {"text": TEXT, "batch": 3, "length": 5, "embedding": 4, "hidden": 6, "validation_windows": 9}
    return CharLSTM(**{**small, **changes})


@pytest.fixture
def corpus(tmp_path):
    words = " ".join(TEXT[:1500])
    (tmp_path / "train.txt").write_text(f"<unk> {words} \n {words} \n")
    (tmp_path / "valid.txt").write_text(" ".join(TEXT[1500:2000]) + " rare\n")
    return tmp_path


def word(path, **changes):
    small = {"batch": 3, "length": 5, "embedding": 4, "hidden": 6, "layers": 2, "validation_windows": 9}
    return WordLSTM(path=path, **{**small, **changes})


def seeded(workload, seed=0, x=None):
    return workload.gradient(workload.start() if x is None else x, np.random.default_rng(seed))


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_contract(size):
    state = torch.get_rng_state()
    whole = char()
    assert isinstance(whole, Workload)
    x = whole.start()
    for rank in range(size):
        shard = whole.shard(rank, size)
        g = seeded(shard, rank)
        assert torch.equal(g, seeded(shard, rank))
        assert not torch.equal(g, seeded(shard, 99))
        assert g.shape == x.shape
        assert shard.loss(x) == whole.loss(x)
        assert torch.equal(shard.start(), x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(seeded(whole), seeded(whole.shard(0, 1)))


@pytest.mark.parametrize(("tied", "hidden", "layers"), [(False, 5, 1), (True, 5, 2), (True, 3, 1)])
def test_gradient_agrees_with_finite_differences(tied, hidden, layers):
    tokens = np.random.default_rng(0).integers(4, size=90)
    model = partial(RecurrentModel, embedding=3, hidden=hidden, layers=layers, tied=tied)
    workload = LanguageModel(
        build=lambda vocabulary: model(vocabulary=vocabulary).double(),
        train=tokens,
        validation=tokens,
        vocabulary=4,
        batch=2,
        length=3,
        heterogeneity=0.0,
        validation_windows=4,
        seed=0,
        device="cpu",
    )
    x, step = workload.start() * 3, 1e-6
    generator = np.random.default_rng(1)

    def batch_loss(x):
        with workload.evaluating(x) as module:
            return float(workload.batch_loss(module, np.random.default_rng(0)))

    g = seeded(workload, x=x)
    for direction in torch.from_numpy(generator.standard_normal((20, len(x)))):
        slope = (batch_loss(x + step * direction) - batch_loss(x - step * direction)) / (2 * step)
        assert float(g @ direction) == pytest.approx(slope, abs=1e-7)
    assert g.abs().max() > 1e-3


@pytest.mark.slow
def test_threads_do_not_disturb_each_other(corpus):
    whole = word(corpus, dropout=0.5)
    shards = [whole.shard(rank, 4) for rank in range(4)]
    xs = [whole.start() + 0.1 * rank for rank in range(4)]

    def gradients(rank):
        return torch.stack([seeded(shards[rank], seed, xs[rank]) for seed in range(20)])

    alone = [gradients(rank) for rank in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(gradients, range(4)), alone))


def test_loss_is_the_mean_over_fixed_windows_whatever_the_batches(monkeypatch):
    whole = char(validation_windows=50)
    x, at_once = whole.start(), whole.loss(whole.start())
    assert at_once == pytest.approx(math.log(6), abs=0.2)
    assert whole.perplexity(x) == pytest.approx(math.exp(at_once))
    monkeypatch.setattr("flockstep.workloads.language._LOGITS_AT_ONCE", 7 * 5 * 6)
    assert whole.loss(x) == pytest.approx(at_once, rel=1e-6)
    assert char(validation_windows=10**6).loss(x) == pytest.approx(at_once, rel=0.05)


def test_perplexity_of_a_bad_model_is_infinite():
    whole = char()
    assert whole.perplexity(whole.start() * 1e6) == math.inf


def test_windows_stay_inside_the_shards_own_text():
    whole = char(heterogeneity=1.0, batch=400)
    seen = []
    for rank in range(3):
        shard = whole.shard(rank, 3)
        shard._tokens = torch.arange(len(whole._tokens))
        seen.append(drawn(shard))
    assert [(min(s) // 1200, max(s) // 1200) for s in seen] == [(0, 0), (1, 1), (2, 2)]
    assert all(max(s) - min(s) > 1000 for s in seen)


def drawn(shard):
    """Positions in the text that one batch touches."""
    positions = []

    def module(inputs, generator):
        positions.extend(inputs.flatten().tolist())
        return torch.zeros(*inputs.shape, 4000)

    shard.batch_loss(module, np.random.default_rng(0))
    return positions


def test_random_shards_are_disjoint():
    whole = char(batch=400)
    whole._tokens = torch.arange(len(whole._tokens))
    one, other = (set(drawn(whole.shard(rank, 2))) for rank in range(2))
    assert not one & other
    assert max(one) - min(one) > 3000


def test_shards_share_text_and_parameters():
    whole = char()
    shard = whole.shard(1, 4)
    assert shard._tokens is whole._tokens
    assert shard._start is whole._start
    assert shard._module is not whole._module


@pytest.mark.slow
def test_a_few_steps_lower_the_loss():
    whole = CharLSTM(batch=8, length=16, hidden=32, validation_windows=32)
    x, rng = whole.start(), np.random.default_rng(0)
    first = whole.loss(x)
    for _ in range(100):
        x -= 2.0 * whole.gradient(x, rng)
    assert first == pytest.approx(math.log(65), abs=0.1)
    assert whole.loss(x) < first - 0.5


def parameters(workload):
    with workload.evaluating(workload.start()) as module:
        return sum(p.numel() for p in module.parameters())


def test_words_tie_the_embedding_and_know_unseen_words(corpus):
    vocabulary = len(set("abcdef")) + 2
    lstm = 4 * 6 * (4 + 6 + 2) + 4 * 6 * (6 + 6 + 2)
    assert parameters(word(corpus)) == vocabulary * 4 + lstm + 6 * 4 + vocabulary
    assert parameters(word(corpus, tied=False)) == vocabulary * 4 + lstm + 6 * vocabulary + vocabulary
    assert parameters(word(corpus, hidden=4, layers=1)) == vocabulary * 4 + 4 * 4 * 10 + vocabulary


def test_dropout_comes_from_the_given_generator(corpus):
    state = torch.get_rng_state()
    with_dropout, without = word(corpus, dropout=0.5), word(corpus)
    assert torch.equal(seeded(with_dropout), seeded(with_dropout))
    assert not torch.equal(seeded(with_dropout), seeded(without))
    assert with_dropout.loss(without.start()) == without.loss(without.start())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_word_that_train_lacks_needs_unk(corpus):
    (corpus / "train.txt").write_text(" ".join(TEXT[:200]))
    with pytest.raises(ValueError, match=r"valid\.txt has words that train\.txt lacks, and there is no <unk>"):
        word(corpus)


def test_the_published_size_can_be_built():
    with torch.device("meta"):
        model = RecurrentModel(vocabulary=33_278, embedding=400, hidden=1150, layers=3, tied=True)
    lstm = 4 * 1150 * (400 + 1150 + 2) + 2 * 4 * 1150 * (1150 + 1150 + 2)
    assert sum(p.numel() for p in model.parameters()) == 33_278 * 401 + lstm + 1150 * 400


@pytest.mark.slow
def test_wikitext_has_its_known_vocabulary():
    try:
        data_folder("wikitext-2")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    whole = WordLSTM(batch=1, length=4, embedding=4, hidden=4, layers=1, validation_windows=2)
    assert whole._vocabulary == 33_278
    assert len(whole._tokens) == 2_088_628
    assert whole.loss(whole.start()) == pytest.approx(math.log(33_278), abs=0.1)


@pytest.mark.parametrize("name", ["batch", "length", "embedding", "hidden", "layers", "validation_windows"])
def test_counts_are_checked(name, corpus):
    with pytest.raises(ValueError, match=rf"CharLSTM\.{name} must be at least 1, got 0"):
        char(**{name: 0})
    with pytest.raises(TypeError, match=rf"WordLSTM\.{name} must be a whole number, got 2\.0"):
        word(corpus, **{name: 2.0})


def test_other_bad_arguments(corpus):
    with pytest.raises(ValueError, match=r"CharLSTM\.heterogeneity must be between 0 and 1, got -1"):
        char(heterogeneity=-1)
    with pytest.raises(ValueError, match=r"CharLSTM\.text must have at least 60 characters for length 5, got 59"):
        char(text=TEXT[:59])
    with pytest.raises(TypeError, match=r"CharLSTM\.text must be a string, got int"):
        char(text=3)
    with pytest.raises(ValueError, match=r"WordLSTM\.dropout must be below 1, got 1\.0"):
        word(corpus, dropout=1.0)
    with pytest.raises(ValueError, match=r"valid\.txt must have more than 600 words for WordLSTM\.length 600, got 502"):
        word(corpus, length=600)
    with pytest.raises(ValueError, match=r"deal\.size must not exceed the 90 items there are to deal, got 91"):
        char().shard(0, 91)


def test_the_shortest_text_that_is_accepted_works():
    shortest = char(text=TEXT[:60])
    assert torch.isfinite(seeded(shortest)).all()
    assert math.isfinite(shortest.loss(shortest.start()))
