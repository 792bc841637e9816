import numpy as np
import pytest
import torch

from flockstep.workloads.convex import Logistic, Quadratics, Quartics
from flockstep.workloads.workload import Workload

torch.set_num_threads(1)

RNG = np.random.default_rng(7)
FEATURES, LABELS = RNG.standard_normal((40, 5)), np.where(RNG.random(40) < 0.3, 1.0, -1.0)


def logistic(**changes):
    return Logistic(**{"data": (FEATURES, LABELS), "batch": 4, "dtype": torch.float64, **changes})


EVERY = [
    pytest.param(lambda: Quadratics(dim=5, dtype=torch.float64), id="quadratics"),
    pytest.param(Quartics, id="quartics"),
    pytest.param(logistic, id="logistic"),
]


def slopes(loss, x, step=1e-6):
    """Central differences of ``loss`` along every coordinate."""
    return torch.tensor(
        [(loss(x + step * e) - loss(x - step * e)) / (2 * step) for e in torch.eye(len(x)).double()],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_contract(make, size):
    whole = make()
    assert isinstance(whole, Workload)
    shards = [whole.shard(rank, size) for rank in range(size)]
    x = whole.start() + 0.3
    before, state = x.clone(), torch.get_rng_state()
    for rank, shard in enumerate(shards):
        g = shard.gradient(x, np.random.default_rng(rank))
        assert torch.equal(g, shard.gradient(x, np.random.default_rng(rank)))
        assert not torch.equal(g, shard.gradient(x, np.random.default_rng(99)))
        assert g.shape == x.shape
        assert g.dtype == x.dtype
        assert torch.equal(shard.start(), whole.start())
        assert shard.loss(x) == shards[0].loss(x)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert whole.start() is not whole.start()


@pytest.mark.parametrize("make", EVERY)
def test_one_shard_is_the_whole(make):
    whole, x = make(), make().start() + 0.1
    one = whole.shard(0, 1)
    assert one.loss(x) == whole.loss(x)
    assert torch.equal(*(w.gradient(x, np.random.default_rng(3)) for w in (one, whole)))


@pytest.mark.parametrize("make", EVERY)
def test_no_gradient_flows_to_x(make):
    whole = make()
    g = whole.gradient(whole.start().requires_grad_(), np.random.default_rng(0))
    assert not g.requires_grad
    assert isinstance(whole.loss(whole.start().requires_grad_()), float)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("heterogeneity", [0.0, 0.5, 1.0])
def test_quadratics_have_the_stated_gradient_and_loss(size, heterogeneity):
    whole = Quadratics(dim=6, heterogeneity=heterogeneity, noise=0.5, dtype=torch.float64, seed=4)
    shards = [whole.shard(rank, size) for rank in range(size)]
    x = torch.linspace(-1, 2, 6).double()
    for shard in shards:
        mine, oracle = np.random.default_rng(1), np.random.default_rng(1)
        expected = shard.curvature * (x.numpy() - shard.centre) + 0.5 * oracle.standard_normal(6)
        assert np.allclose(shard.gradient(x, mine).numpy(), expected, rtol=0, atol=1e-12)
    mean = np.mean([0.5 * np.sum(s.curvature * (x.numpy() - s.centre) ** 2) for s in shards])
    assert shards[-1].loss(x) == pytest.approx(mean, rel=1e-12)
    exact = torch.stack([whole.shard(r, size).gradient(x, Zeros()) for r in range(size)]).mean(0)
    assert torch.allclose(exact, slopes(shards[0].loss, x), atol=1e-7)


class Zeros:
    """Stands in for a generator where noise is in the way."""

    def standard_normal(self, size, dtype):
        return np.zeros(size, dtype)


def test_quadratics_optimum_is_least():
    shard = Quadratics(dim=8, dtype=torch.float64).shard(2, 3)
    assert slopes(shard.loss, shard.optimum()).abs().max() < 1e-8
    least = shard.optimum()
    shard.optimum().zero_()
    assert torch.equal(least, shard.optimum())


def test_quadratics_heterogeneity_and_condition():
    same = [Quadratics(heterogeneity=0.0).shard(rank, 3) for rank in range(3)]
    assert all(np.array_equal(s.curvature, same[0].curvature) for s in same)
    assert all(np.array_equal(s.centre, same[0].centre) for s in same)
    own = [Quadratics(dim=1000, condition=50.0).shard(rank, 3) for rank in range(3)]
    assert not np.allclose(own[0].centre, own[1].centre)
    for shard in own:
        assert 1 / 50 <= shard.curvature.min() < 1 / 40
        assert 0.9 < shard.curvature.max() <= 1
    assert np.allclose(Quadratics(condition=1.0).curvature, 1)


def test_quadratics_do_not_share_random_numbers_with_batches():
    centre, noise = Quadratics(dim=500, seed=0).shard(0, 2).centre, np.random.default_rng([0, 0, 0])
    assert abs(np.corrcoef(centre, noise.standard_normal(500))[0, 1]) < 0.2


@pytest.mark.parametrize(("size", "h"), [(1, 0.5), (2, 0.5), (3, 0.0), (4, 0.5), (5, 0.2)])
def test_quartics_loss_is_the_height_above_the_minimum(size, h):
    shard = Quartics(H=4.0).shard(0, size)

    def f(x):
        return x**4 - 3 * x**3 - 4.0 * h * x**2 + x

    least = f(np.linspace(-5, 5, 200_001)).min()
    for x in (-1.0, 0.0, 2.5):
        assert shard.loss(torch.tensor([x])) == pytest.approx(f(x) - least, abs=1e-6)


@pytest.mark.parametrize(("rank", "size", "h"), [(0, 2, -1), (1, 2, 2), (2, 3, -1), (0, 1, 0.5)])
def test_quartics_gradient(rank, size, h):
    shard = Quartics(H=3.0, noise=0.25).shard(rank, size)
    noise = np.random.default_rng(5).uniform(-1, 1)
    expected = 4 * 1.5**3 - 9 * 1.5**2 - 6.0 * h * 1.5 + 1 + 0.25 * noise
    g = shard.gradient(torch.tensor([1.5], dtype=torch.float64), np.random.default_rng(5))
    assert float(g) == pytest.approx(expected, abs=1e-12)
    assert float(Quartics(x0=2.5).start()) == 2.5


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("far", [1e200, float("inf"), float("nan")])
def test_a_diverged_x_gives_a_loss_that_is_not_finite(make, far):
    whole = make()
    x = torch.full_like(whole.start(), far)
    assert not np.isfinite(whole.loss(x))
    assert whole.gradient(x, np.random.default_rng(0)).shape == x.shape


def plain_loss(x, features, labels, l2):
    margins = labels * (features @ x[:-1] + x[-1])
    return np.mean(np.log1p(np.exp(-margins))) + l2 / 2 * x @ x


def test_logistic_loss_and_accuracy():
    whole, x = logistic(l2=0.01), np.linspace(-1, 1, 6)
    assert whole.loss(torch.tensor(x)) == pytest.approx(plain_loss(x, FEATURES, LABELS, 0.01), rel=1e-12)
    right = np.sign(FEATURES @ x[:-1] + x[-1]) == LABELS
    assert whole.accuracy(torch.tensor(x)) == pytest.approx(right.mean())
    assert whole.shard(1, 3).accuracy(torch.tensor(x)) == pytest.approx(right.mean())


def test_logistic_gradient_is_of_the_drawn_rows():
    x = torch.linspace(-1, 1, 6).double()
    rows = np.random.default_rng(2).integers(40, size=4)
    expected = slopes(lambda x: plain_loss(x.numpy(), FEATURES[rows], LABELS[rows], 0.1), x)
    assert torch.allclose(logistic(l2=0.1).gradient(x, np.random.default_rng(2)), expected, atol=1e-8)


def test_logistic_survives_large_margins():
    x = torch.full((6,), 1e6, dtype=torch.float64)
    assert np.isfinite(logistic(l2=0.0).loss(x))
    assert torch.isfinite(logistic(l2=0.0).gradient(x, np.random.default_rng(0))).all()


def test_logistic_heterogeneity_sorts_labels():
    negative = int((LABELS < 0).sum())
    shard = logistic(heterogeneity=1.0, batch=200, l2=0.0).shard(0, 40 // (40 - negative))
    # Only negative labels push the bias up: each adds sigmoid(0) = 1/2.
    assert float(shard.gradient(shard.start(), np.random.default_rng(0))[-1]) == pytest.approx(0.5)


def test_logistic_shards_share_the_data():
    whole = logistic()
    assert whole.shard(0, 4)._signed.data_ptr() == whole._signed.data_ptr()


def test_logistic_takes_lists_tensors_and_files(tmp_path):
    file = tmp_path / "tiny"
    file.write_text("1 1:1 2:2\n-1 2:1\n")
    pairs = [([[1, 2], [0, 1]], [1, -1]), (torch.tensor([[1.0, 2], [0, 1]]), torch.tensor([1, -1]))]
    x = torch.tensor([0.5, -1.0, 2.0])
    assert len({Logistic(data=data).loss(x) for data in [file, str(file), *pairs]}) == 1


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "libsvm").mkdir()
    monkeypatch.setenv("FLOCKSTEP_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"Logistic\.data: there is neither a file 'b9b' nor .*b9b\.gz'"):
        Logistic(data="b9b")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quadratics(dim=0), r"Quadratics\.dim must be at least 1, got 0"),
        (lambda: Quadratics(heterogeneity=2), r"Quadratics\.heterogeneity must be between 0 and 1, got 2"),
        (lambda: Quadratics(noise=-1), r"Quadratics\.noise must not be negative, got -1"),
        (lambda: Quadratics(condition=0.5), r"Quadratics\.condition must be at least 1, got 0\.5"),
        (lambda: Quadratics(dtype=torch.float16), r"Quadratics\.dtype must be one of torch\.float32"),
        (lambda: Quadratics().shard(3, 3), r"Quadratics\.rank must be below size 3, got 3"),
        (lambda: Quartics(H=-1), r"Quartics\.H must not be negative, got -1"),
        (lambda: Quartics(x0=float("nan")), r"Quartics\.x0 must be finite, got nan"),
        (lambda: logistic(batch=0), r"Logistic\.batch must be at least 1, got 0"),
        (lambda: logistic(l2=-0.1), r"Logistic\.l2 must not be negative, got -0\.1"),
        (lambda: logistic(seed=-1), r"Logistic\.seed must be at least 0, got -1"),
        (
            lambda: logistic(data=(FEATURES, LABELS * 2)),
            r"Logistic\.data must have labels -1 or \+1, got -?2",
        ),
        (
            lambda: logistic(data=(FEATURES, LABELS[1:])),
            r"Logistic\.data must have one label for each of the 40 rows",
        ),
        (lambda: logistic(data=(LABELS, LABELS)), r"Logistic\.data must have a matrix of features"),
        (lambda: logistic(data=(FEATURES * np.nan, LABELS)), r"Logistic\.data must have finite features"),
        (lambda: logistic().shard(0, 41), r"deal\.size must not exceed the 40 items"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
