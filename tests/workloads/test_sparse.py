"""Sparse logistic regression against NumPy written from the formulas, and against the dense one."""

import copy
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flockstep.workloads.convex import Logistic
from flockstep.workloads.sparse import SparseLogistic
from flockstep.workloads.workload import Workload

torch.set_num_threads(1)

RNG = np.random.default_rng(7)
DENSE = RNG.standard_normal((40, 6)) * (RNG.random((40, 6)) < 0.4)
DENSE[:, 5] = 0
DENSE[11] = 0
LABELS = np.where(RNG.random(40) < 0.3, 1.0, -1.0)
X = torch.linspace(-1, 1, 7).double()


def sparse(**changes):
    return SparseLogistic(**{"data": (DENSE, LABELS), "batch": 4, "dtype": torch.float64, **changes})


def csr(matrix, index=np.int32):
    rows, columns = np.nonzero(matrix)
    return SimpleNamespace(
        indptr=np.searchsorted(rows, np.arange(len(matrix) + 1)).astype(index),
        indices=columns.astype(index),
        data=np.asarray(matrix)[rows, columns],
        shape=np.shape(matrix),
    )


def plain_gradient(x, rows, shard, l2):
    """The mean over rows of -y a / (1 + exp(margin)), and of l2 x_i / (the fraction of the shard's rows with an i)."""
    with_bias = np.column_stack([DENSE, np.ones(40)])
    often = (with_bias[shard] != 0).mean(0)
    g = np.zeros(7)
    for row in rows:
        a, y = with_bias[row], LABELS[row]
        g -= y * a / (1 + np.exp(y * (a @ x)))
        for i in np.flatnonzero(a):
            g[i] += l2 * x[i] / often[i]
    return g / len(rows)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_contract(size):
    whole = sparse()
    assert isinstance(whole, Workload)
    before = X.clone()
    for rank in range(size):
        shard = whole.shard(rank, size)
        g = shard.gradient(X, np.random.default_rng(rank))
        assert torch.equal(g, shard.gradient(X, np.random.default_rng(rank)))
        assert not torch.equal(g, shard.gradient(X, np.random.default_rng(99)))
        assert (g.shape, g.dtype) == (X.shape, X.dtype)
        assert not shard.gradient(X.clone().requires_grad_(), np.random.default_rng(0)).requires_grad
        assert torch.equal(shard.start(), torch.zeros(7).double())
        assert shard.loss(X) == whole.loss(X)
    assert torch.equal(X, before)
    assert whole.start() is not whole.start()


def test_loss_and_accuracy_are_those_of_the_dense_one():
    dense = Logistic(data=(DENSE, LABELS), l2=0.01, dtype=torch.float64)
    assert sparse(l2=0.01).loss(X) == pytest.approx(dense.loss(X), rel=1e-12)
    assert sparse().accuracy(X) == dense.accuracy(X)
    assert sparse().shard(1, 3).accuracy(X) == dense.accuracy(X)


def test_without_l2_gradients_are_those_of_the_dense_one():
    dense = Logistic(data=(DENSE, LABELS), l2=0.0, batch=4, dtype=torch.float64)
    for rank in range(3):
        ours, theirs = (w.shard(rank, 3).gradient(X, np.random.default_rng(5)) for w in (sparse(l2=0.0), dense))
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize(("rank", "size"), [(0, 1), (1, 2), (2, 3)])
def test_the_gradient_of_the_drawn_rows(batch, rank, size):
    shard = sparse(l2=0.1, batch=batch).shard(rank, size)
    rows = shard._rows[np.random.default_rng(2).integers(len(shard._rows), size=batch)]
    expected = plain_gradient(X.numpy(), rows, shard._rows, 0.1)
    assert np.allclose(shard.gradient(X, np.random.default_rng(2)).numpy(), expected, rtol=0, atol=1e-12)


def test_over_all_rows_the_gradient_is_the_slope_of_the_loss():
    whole = sparse(l2=0.1, batch=40)
    g = whole.gradient(X, SimpleNamespace(integers=lambda high, size: np.arange(40)))
    steps = 1e-6 * torch.eye(7).double()
    slopes = torch.tensor([(whole.loss(X + e) - whole.loss(X - e)) / 2e-6 for e in steps], dtype=torch.float64)
    # But for the coordinate that no row touches: the loss has its l2 term, and no step ever moves it.
    assert torch.allclose(g[[0, 1, 2, 3, 4, 6]], slopes[[0, 1, 2, 3, 4, 6]], atol=1e-8)
    assert g[5] == 0


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("publish", [1, 2, 128])
def test_a_descent_of_one_step_is_a_gradient_step(batch, publish):
    shard = sparse(l2=0.1, batch=batch, publish=publish).shard(1, 2)
    x = X.clone()
    shard.descend(x, np.random.default_rng(4), 1, 0.3)
    assert torch.allclose(x, X - 0.3 * shard.gradient(X, np.random.default_rng(4)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 500])
def test_when_it_publishes_changes_no_bit_and_nor_do_calls(dtype, batch, steps, monkeypatch):
    results = []
    for publish in (1, 2, 3, 128):
        x = X.to(dtype, copy=True)
        sparse(l2=0.1, batch=batch, publish=publish, dtype=dtype).descend(x, np.random.default_rng(4), steps, 0.3)
        results.append(x)
    x, rng, one = X.to(dtype, copy=True), np.random.default_rng(4), sparse(l2=0.1, batch=batch, dtype=dtype)
    for _ in range(steps):
        one.descend(x, rng, 1, 0.3)
    results.append(x)
    monkeypatch.setattr("flockstep.workloads.sparse._DRAWN_AT_ONCE", 5)
    x = X.to(dtype, copy=True)
    sparse(l2=0.1, batch=batch, publish=2, dtype=dtype).descend(x, np.random.default_rng(4), steps, 0.3)
    assert all(torch.equal(x, other) for other in results)
    assert torch.equal(x, X.to(dtype)) == (steps == 0)


def test_a_descent_is_many_gradient_steps():
    shard, x, oracle, rng = sparse(l2=0.1, batch=2), X.clone(), X.clone(), np.random.default_rng(4)
    shard.descend(x, np.random.default_rng(4), 300, 0.3)
    for _ in range(300):
        oracle -= 0.3 * shard.gradient(oracle, rng)
    assert torch.allclose(x, oracle, rtol=0, atol=1e-11)


def test_a_descent_writes_to_the_rows_coordinates_alone():
    data = (np.diag([1.0, 2, 3, 4]), [1, -1, 1, -1])
    whole = SparseLogistic(data=data, dtype=torch.float64)
    x = torch.tensor([float("nan")] * 4 + [0.0], dtype=torch.float64)
    row = int(np.random.default_rng(1).integers(4, size=1)[0])
    x[row] = 0
    whole.descend(x, np.random.default_rng(1), 1, 0.5)
    sign = data[1][row]
    assert x[row] == 0.25 * sign * (row + 1)
    assert x[4] == 0.25 * sign
    assert x.isnan().sum() == 3


def test_what_another_wrote_meanwhile_is_kept():
    """One thread steps while another adds to a coordinate its rows do not touch."""
    data = (np.column_stack([np.ones(3), np.zeros(3)]), [1, 1, -1])
    whole = SparseLogistic(data=data, l2=0.0, dtype=torch.float64)
    x = whole.start()
    working = threading.Thread(target=whole.descend, args=(x, np.random.default_rng(0), 300_000, 0.01))
    working.start()
    other = x.numpy()[1:2]
    for _ in range(1000):
        other += 1
    working.join()
    assert x[1] == 1000
    assert x[0] != 0


def test_two_threads_on_one_vector_learn():
    whole = SparseLogistic(data=(DENSE, LABELS), l2=0.01, publish=2)
    x, start = whole.start(), whole.loss(whole.start())
    threads = [
        threading.Thread(target=w.descend, args=(x, np.random.default_rng(k), 20_000, 0.02))
        for k, w in enumerate([whole, copy.deepcopy(whole), copy.deepcopy(whole)])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert whole.loss(x) < 0.95 * start


def test_shards_and_copies_share_the_data_and_no_scratch():
    whole = sparse()
    whole.descend(X.clone(), np.random.default_rng(0), 1, 0.1)
    for other in (whole.shard(0, 4), copy.deepcopy(whole)):
        assert other._values is whole._values
        assert other._scratch is None
    twin = copy.deepcopy(whole)
    assert torch.equal(twin.gradient(X, np.random.default_rng(1)), whole.gradient(X, np.random.default_rng(1)))


def test_heterogeneity_sorts_labels():
    negative = int((LABELS < 0).sum())
    shard = sparse(heterogeneity=1.0, batch=200, l2=0.0).shard(0, 40 // (40 - negative))
    # Only negative labels push the bias up: each adds sigmoid(0) = 1/2.
    assert float(shard.gradient(shard.start(), np.random.default_rng(0))[-1]) == pytest.approx(0.5)


@pytest.mark.parametrize("far", [1e200, float("inf"), float("nan")])
def test_a_diverged_x_gives_a_loss_that_is_not_finite(far):
    whole = sparse()
    x = torch.full((7,), far, dtype=torch.float64)
    assert not np.isfinite(whole.loss(x))
    assert whole.gradient(x, np.random.default_rng(0)).shape == x.shape
    whole.descend(x, np.random.default_rng(0), 10, 0.1)


def test_it_takes_dense_csr_lists_tensors_and_files(tmp_path):
    file = tmp_path / "tiny"
    file.write_text("1 1:1 2:2\n-1 2:1\n")
    matrix, labels = [[1, 2], [0, 1]], [1, -1]
    pairs = [(matrix, labels), (torch.tensor(matrix), torch.tensor(labels)), (csr(matrix), labels)]
    pairs.append((csr(matrix, np.uint16), np.array(labels)))
    x = torch.tensor([0.5, -1.0, 2.0])
    assert len({SparseLogistic(data=data).loss(x) for data in [file, str(file), *pairs]}) == 1


def broken(**changes):
    return lambda: SparseLogistic(data=(SimpleNamespace(**{**vars(csr(DENSE)), **changes}), LABELS))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sparse(batch=0), r"SparseLogistic\.batch must be at least 1, got 0"),
        (lambda: sparse(l2=-0.1), r"SparseLogistic\.l2 must not be negative, got -0\.1"),
        (lambda: sparse(publish=0), r"SparseLogistic\.publish must be at least 1, got 0"),
        (lambda: sparse(seed=-1), r"SparseLogistic\.seed must be at least 0, got -1"),
        (lambda: sparse(dtype=torch.float16), r"SparseLogistic\.dtype must be one of torch\.float32"),
        (lambda: sparse(heterogeneity=2), r"SparseLogistic\.heterogeneity must be between 0 and 1, got 2"),
        (lambda: sparse(data=(DENSE, LABELS * 2)), r"SparseLogistic\.data must have labels -1 or \+1, got -?2"),
        (lambda: sparse(data=(DENSE, LABELS[1:])), r"SparseLogistic\.data must have one label for each of the 40 rows"),
        (lambda: sparse(data=(LABELS, LABELS)), r"SparseLogistic\.data must have a matrix of features, got shape .40,"),
        (lambda: sparse(data=(3.0, LABELS)), r"SparseLogistic\.data must have a matrix of features"),
        (lambda: sparse(data=(np.zeros((40, 0)), LABELS)), r"SparseLogistic\.data must have a matrix of features"),
        (lambda: sparse(data=(DENSE * np.nan, LABELS)), r"SparseLogistic\.data must have finite features"),
        (broken(indptr=[0, 1]), r"SparseLogistic\.data must have an indptr that parts its numbers into 40 rows"),
        (broken(indptr=csr(DENSE).indptr[::-1]), r"must have an indptr that parts"),
        (broken(indices=csr(DENSE).indices + 3), r"SparseLogistic\.data must have indices from 0 to 5"),
        (broken(indices=csr(DENSE).indices - 1), r"SparseLogistic\.data must have indices from 0 to 5"),
        (broken(indices=csr(DENSE).indices * 0), r"must have indices that rise within a row\n.*sum_duplicates"),
        (lambda: sparse().shard(0, 41), r"deal\.size must not exceed the 40 items"),
        (lambda: sparse().loss(torch.zeros(6).double()), r"takes vectors like start\(\), .*\(7,\).*, got \(6,\)"),
        (lambda: sparse().descend(torch.zeros(7), np.random.default_rng(0), 1, 0.1), r"float64, got .* torch\.float32"),
        (lambda: sparse().gradient(torch.zeros(14).double()[::2], np.random.default_rng(0)), r"contiguous"),
        (lambda: sparse().descend(X.clone(), np.random.default_rng(0), -1, 0.1), r"SparseLogistic\.steps must be at"),
        (lambda: sparse().descend(X.clone(), np.random.default_rng(0), 1, np.inf), r"SparseLogistic\.rate must be fin"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
