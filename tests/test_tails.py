import numpy as np
import pytest
import torch
from torch import nn

from flockstep.tails import TailIndex, gradient_samples, tail_index

torch.set_num_threads(1)


def with_pareto_tails(index, shape, seed=0):
    """Half of the numbers uniform in [-1, 1], half Pareto beyond: P(|U| > u) = u^-index / 2 from u = 1 on."""
    rng = np.random.default_rng(seed)
    sizes = np.where(rng.random(shape) < 0.5, rng.random(shape), (1 - rng.random(shape)) ** (-1 / index))
    return np.where(rng.random(shape) < 0.5, sizes, -sizes)


def hill(sizes, k):
    ordered = sorted(sizes, reverse=True)
    return k / sum(np.log(size / ordered[k]) for size in ordered[:k])


@pytest.mark.parametrize("index", [1.2, 1.8, 3.0])
@pytest.mark.parametrize("shape", [(20_000,), (200, 100), (1000, 7)])
@pytest.mark.parametrize("share", [None, 0.01, 0.04])
@pytest.mark.cases(check=9)
def test_a_known_index_is_found(index, shape, share):
    for seed in range(3):
        found = tail_index(with_pareto_tails(index, shape, seed), share=share)
        assert abs(found.index - index) < 4 * index / np.sqrt(found.k)
        assert found.error == found.index / np.sqrt(found.k)
        assert found.count == np.prod(shape)


@pytest.mark.parametrize("share", [0.001, 0.05, 0.3, 0.9])
def test_the_estimate_is_hills(share):
    samples = np.random.default_rng(3).standard_t(2, (101, 3)) * [1, 100, 1e-6] + [5, 0, -1e3]
    centred = np.abs(samples - np.median(samples, axis=0))
    sizes = (centred / np.median(centred, axis=0)).ravel()
    found = tail_index(samples, share=share)
    # Three of the 303 are medians, of size zero: nothing can be said beyond them.
    assert found.k == max(1, round(share * 303))
    assert found.index == pytest.approx(hill(sizes, found.k), rel=1e-9)
    for k, estimate in zip(*found.curve, strict=True):
        assert estimate == pytest.approx(hill(sizes, int(k)), rel=1e-9)


@pytest.mark.parametrize("repeats", [20, 50, 400])
def test_gaussian_noise_has_no_heavy_tail(repeats):
    for seed in range(5):
        found = tail_index(np.random.default_rng(seed).standard_normal((repeats, 200)) * np.arange(1, 201))
        assert "heavy tails are not your problem" in found.verdict


@pytest.mark.parametrize("repeats", [20, 50, 400])
@pytest.mark.parametrize("df", [1.2, 1.5])
def test_heavy_noise_is_called_heavy(repeats, df):
    for seed in range(5):
        found = tail_index(np.random.default_rng(seed).standard_t(df, (repeats, 200)) + 7)
        assert "infinite variance" in found.verdict
        assert "SClipEF" in found.verdict
        assert "GTNSGDm" in found.verdict
        assert "clip" in found.verdict
        assert found.index == pytest.approx(df, rel=0.25)


def test_no_mean_is_called_so():
    assert "not even a mean" in tail_index(with_pareto_tails(0.6, 20_000)).verdict


def test_too_few_numbers_take_no_side():
    # The index is 2: by chance alone a verdict takes a side now and then, but not more often.
    found = [tail_index(np.random.default_rng(seed).standard_t(2, 60)) for seed in range(50)]
    assert {each.k for each in found} == {6}
    assert sum("cannot tell" in each.verdict for each in found) >= 45


def test_a_mixture_with_few_outliers_is_found_out():
    rng = np.random.default_rng(0)
    samples = np.where(rng.random((500, 100)) < 0.1, rng.standard_cauchy((500, 100)), rng.standard_normal((500, 100)))
    assert "infinite variance" in tail_index(samples).verdict


def test_any_form_of_samples():
    rows = np.random.default_rng(1).standard_normal((60, 4)).astype(np.float32)
    forms = [
        rows,
        torch.from_numpy(rows),
        torch.from_numpy(rows).requires_grad_(),
        list(rows),
        [torch.from_numpy(row) for row in rows],
        rows.tolist(),
    ]
    assert len({tail_index(form) for form in forms}) == 1
    column = rows[:, 0]
    assert tail_index(column) == tail_index(column[:, None]) == tail_index(list(column))
    assert tail_index(torch.from_numpy(rows).bfloat16()).count == 240


def test_shift_and_scale_of_a_coordinate_change_nothing():
    samples = np.random.default_rng(2).standard_t(3, (100, 5))
    moved = tail_index(samples * [1e-8, 1, 3, 1e4, 7] + [0, 1e2, -5, 3, 1])
    assert moved.index == pytest.approx(tail_index(samples).index, rel=1e-5)


def test_coordinates_that_hardly_move_are_left_out_and_told():
    rng = np.random.default_rng(4)
    samples = rng.standard_normal((100, 5))
    still = np.column_stack([samples, np.full(100, 3.0), np.where(rng.random(100) < 0.3, 1.0, 0.0)])
    found = tail_index(still)
    assert found.dropped == 2
    assert found.count == 500
    assert found.index == tail_index(samples).index
    assert "2 coordinates that hardly move left out" in str(found)
    assert "left out" not in str(tail_index(samples))


def test_numbers_all_alike_have_no_tail():
    signs = np.where(np.random.default_rng(0).random((100, 50)) < 0.5, 1.0, -1.0) + 1e-3
    found = tail_index(np.where(np.arange(50) == 0, np.linspace(-1, 1, 100)[:, None], signs), share=0.1)
    assert found.index > 2
    flat = tail_index(np.tile([-1.0, -1.0, 0.0, 1.0, 1.0], 200))
    assert flat.index == float("inf")
    assert "heavy tails are not your problem" in flat.verdict


@pytest.mark.parametrize("count", [50, 51, 1000])
def test_the_default_k_lies_between_half_a_percent_and_ten(count):
    found = tail_index(np.random.default_rng(count).standard_normal(count))
    assert 0.005 * count <= found.k <= 0.1 * count


@pytest.mark.thorough
def test_the_picture(tmp_path):
    heavy, few = with_pareto_tails(1.5, 3000), np.random.default_rng(0).standard_normal(50)
    for samples in (heavy, few, np.tile([-1.0, 0, 1], 99)):
        found = tail_index(samples)
        path = found.plot(tmp_path / "deep" / "tail.png")
        assert path == tmp_path / "deep" / "tail.png"
        assert path.read_bytes()[:4] == b"\x89PNG"
    tail_index(heavy, share=0.5).plot(tmp_path / "wide.png")


def test_printed_it_gives_the_verdict():
    found = tail_index(with_pareto_tails(1.5, 20_000))
    assert isinstance(found, TailIndex)
    assert str(found).startswith(found.verdict)
    assert "of 20,000 numbers" in str(found)
    assert "curve" not in repr(found)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tail_index(np.ones(49)), r"at least 20 repeats.* 50 numbers, got shape \(49, 1\)\n.*more gradients"),
        (lambda: tail_index(np.ones((19, 100))), r"at least 20 repeats.*got shape \(19, 100\)"),
        (lambda: tail_index(np.ones((100, 100))), r"in coordinates that move .*, got 0\n"),
        (lambda: tail_index([]), r"at least 20 repeats"),
        (lambda: tail_index(np.ones((30, 3, 3))), r"\(repeats,\) or \(repeats, coordinates\), got shape \(30, 3, 3\)"),
        (lambda: tail_index([np.ones(3), np.ones(4)]), r"must be vectors of one length"),
        (lambda: tail_index(np.full(60, np.nan)), r"tail_index\.samples must be finite"),
        (lambda: tail_index(np.arange(60), share=0.0), r"tail_index\.share must be between 0 and 1"),
        (lambda: tail_index(np.arange(60), share=1.0), r"tail_index\.share must be between 0 and 1"),
        (lambda: tail_index(np.arange(60), share=2), r"tail_index\.share must be between 0 and 1, got 2"),
    ],
)
def test_bad_samples(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def small_model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)


def batches(count, dtype=torch.float32):
    rng = np.random.default_rng(5)
    return [torch.from_numpy(rng.standard_normal((6, 3))).to(dtype) for _ in range(count)]


@pytest.mark.parametrize("repeats", [1, 2, 5])
@pytest.mark.parametrize("coordinates", [1, 2, 7, 21, 10_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_are_coordinates_of_the_gradient(repeats, coordinates, dtype):
    model, data = small_model(dtype), batches(repeats, dtype)
    rows = gradient_samples(model, (model(x).square().mean() for x in data), coordinates=coordinates)
    assert rows.shape == (repeats, min(coordinates, 21))
    assert rows.dtype == dtype
    assert all(p.grad is None for p in model.parameters())
    full = []
    for x in data:
        model.zero_grad()
        model(x).square().mean().backward()
        full.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
    # Every column of the rows is a column of the gradients, and no column comes twice.
    columns = [tuple(column.tolist()) for column in torch.stack(full).T]
    places = [columns.index(tuple(column.tolist())) for column in rows.T]
    assert places == sorted(set(places))


def test_grad_is_left_as_it_was():
    model = small_model()
    for p in model.parameters():
        p.grad = torch.full_like(p, 3.0)
    gradient_samples(model, (model(x).sum() for x in batches(2)))
    assert all(torch.equal(p.grad, torch.full_like(p, 3.0)) for p in model.parameters())


def test_the_seed_chooses_the_coordinates():
    model, data = small_model(), batches(1)
    first, same, other = (
        gradient_samples(model, (model(x).sum() for x in data), coordinates=5, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_frozen_unused_and_sparse_parameters():
    model = nn.ModuleDict(
        {"table": nn.Embedding(5, 2, sparse=True), "unused": nn.Linear(2, 2), "frozen": nn.Linear(2, 1)}
    )
    model["frozen"].requires_grad_(False)
    loss = model["frozen"](model["table"](torch.tensor([1, 1, 3]))).sum()
    rows = gradient_samples(model, [loss])
    assert rows.shape == (1, 10 + 6)
    weight = model["frozen"].weight[0]
    assert torch.equal(rows[0, 2:4], 2 * weight)
    assert torch.equal(rows[0, 6:8], weight)
    assert not rows[0, 10:].any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_on_a_gpu():
    model, data = small_model().cuda(), batches(3)
    rows = gradient_samples(model, (model(x.cuda()).sum() for x in data), coordinates=6)
    model.cpu()
    expected = gradient_samples(model, (model(x).sum() for x in data), coordinates=6)
    assert rows.device.type == "cpu"
    assert torch.allclose(rows, expected, atol=1e-5)
    assert tail_index(torch.randn(1000, device="cuda")).count == 1000


@pytest.mark.slow
def test_from_a_model_to_a_verdict():
    model = nn.Linear(20, 1)
    rng = np.random.default_rng(0)

    def losses(noise):
        for _ in range(400):
            x = torch.from_numpy(rng.standard_normal((2, 20))).float()
            y = torch.from_numpy(noise((2, 1))).float()
            yield (model(x) - y).square().mean()

    assert "infinite variance" in tail_index(gradient_samples(model, losses(lambda s: rng.standard_t(1.2, s)))).verdict
    light = tail_index(gradient_samples(model, losses(rng.standard_normal)))
    assert light.index > 2


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda m, x: gradient_samples(nn.Tanh(), []), ValueError, "no trainable parameters"),
        (lambda m, x: gradient_samples(m, []), ValueError, "at least one loss, got none"),
        (lambda m, x: gradient_samples(m, [m(x)]), TypeError, r"scalar tensors, got shape \(6, 1\)\n"),
        (lambda m, x: gradient_samples(m, [0.3]), TypeError, r"scalar tensors, got 0\.3\n"),
        (lambda m, x: gradient_samples(m, [m(x).sum().detach()]), ValueError, "outside no_grad"),
        (lambda m, x: gradient_samples(m, m(x).sum()), TypeError, "an iterable of losses\n"),
        (lambda m, x: gradient_samples(m, [m(x).sum()], coordinates=0), ValueError, "coordinates must be at least 1"),
        (lambda m, x: gradient_samples(m, [m(x).sum()], seed=-1), ValueError, "seed must be at least 0"),
    ],
)
def test_bad_models_and_losses(make, error, message):
    with pytest.raises(error, match=message):
        make(small_model(), batches(1)[0])
