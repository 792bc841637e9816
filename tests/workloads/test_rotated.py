import numpy as np
import pytest
import torch

from flockstep.workloads.rotated import RotatedQuadratics
from flockstep.workloads.workload import Workload

torch.set_num_threads(1)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("dim", [1, 2, 7])
def test_the_contract(size, dim):
    whole = RotatedQuadratics(dim=dim)
    assert isinstance(whole, Workload)
    shards = [whole.shard(rank, size) for rank in range(size)]
    x = whole.start() + 0.3
    before, rng = x.clone(), np.random.default_rng(0)
    state = rng.bit_generator.state
    for shard in shards:
        g = shard.gradient(x.requires_grad_(), rng)
        assert not g.requires_grad
        assert g.dtype == torch.float64
        assert np.allclose(g.numpy(), shard.hessian @ before.numpy() - shard.pull, rtol=0, atol=1e-12)
        assert shard.loss(x) == shards[0].loss(x)
        assert torch.equal(shard.start(), torch.zeros(dim, dtype=torch.float64))
    assert torch.equal(x, before)
    assert rng.bit_generator.state == state


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_loss_is_the_squared_distance_to_the_root_of_the_mean_gradient(size):
    whole = RotatedQuadratics(dim=4, seed=3)
    shards = [whole.shard(rank, size) for rank in range(size)]
    best = shards[-1].optimum()
    at_best = torch.stack([shard.gradient(best, np.random.default_rng(0)) for shard in shards]).mean(0)
    assert at_best.abs().max() < 1e-12
    assert shards[0].loss(best) == 0
    x = torch.linspace(-1, 2, 4).double()
    assert shards[0].loss(x) == pytest.approx(float((x - best).square().sum()), rel=1e-12)
    best.zero_()
    assert shards[0].loss(shards[0].optimum()) == 0
    assert torch.equal(*(s.gradient(x, np.random.default_rng(0)) for s in (whole, whole.shard(0, 1))))


def test_every_node_has_the_same_curvatures_along_axes_of_its_own():
    shards = [RotatedQuadratics(dim=6, least=0.5, most=8.0).shard(rank, 4) for rank in range(4)]
    for shard in shards:
        assert np.array_equal(shard.hessian, shard.hessian.T)
        assert np.allclose(np.linalg.eigvalsh(shard.hessian), np.linspace(0.5, 8, 6))
    assert not np.allclose(shards[0].hessian, shards[1].hessian)
    round_ones = RotatedQuadratics(dim=3, least=2.0, most=2.0)
    assert np.allclose(round_ones.hessian, 2 * np.eye(3))
    assert np.array_equal(RotatedQuadratics(dim=1).hessian, [[1.0]])


@pytest.mark.slow
def test_rotations_favour_no_axis():
    # The mean of Q diag(d) Q' over all rotations is mean(d) I; without the sign fix it is, too, but Q is not uniform:
    # so look at A of many nodes, entry by entry.
    many = np.array([RotatedQuadratics(dim=3, seed=1).shard(rank, 4000).hessian for rank in range(4000)])
    assert np.allclose(many.mean(0), 3 * np.eye(3), atol=5 * many.std(0).max() / np.sqrt(4000))


def test_offsets_and_seeds():
    noise = np.random.default_rng([0, 0, 0])
    centres = np.array([RotatedQuadratics(dim=50, offset=3.0).shard(rank, 20).centre for rank in range(20)])
    assert np.std(centres) == pytest.approx(3.0, rel=0.1)
    assert not RotatedQuadratics(offset=0.0).pull.any()
    assert not RotatedQuadratics().gradient(torch.from_numpy(RotatedQuadratics().centre), noise).abs().gt(1e-12).any()
    assert float(RotatedQuadratics(offset=0.0).optimum().abs().max()) == 0
    assert not np.allclose(RotatedQuadratics(seed=1).hessian, RotatedQuadratics(seed=2).hessian)
    # Not the stream of the first node's batches.
    assert abs(np.corrcoef(RotatedQuadratics(dim=300).centre, noise.standard_normal(300))[0, 1]) < 0.3


@pytest.mark.parametrize("far", [1e200, float("inf"), float("nan")])
def test_a_diverged_x_gives_a_loss_that_is_not_finite(far):
    whole = RotatedQuadratics()
    x = torch.full_like(whole.start(), far)
    assert not np.isfinite(whole.loss(x))
    assert whole.gradient(x, np.random.default_rng(0)).shape == x.shape


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RotatedQuadratics(dim=0), r"RotatedQuadratics\.dim must be at least 1, got 0"),
        (lambda: RotatedQuadratics(least=0), r"RotatedQuadratics\.least must be positive, got 0"),
        (lambda: RotatedQuadratics(most=0.5), r"RotatedQuadratics\.most must not be below least 1\.0, got 0\.5"),
        (lambda: RotatedQuadratics(offset=-1), r"RotatedQuadratics\.offset must not be negative, got -1"),
        (lambda: RotatedQuadratics(seed=-1), r"RotatedQuadratics\.seed must be at least 0, got -1"),
        (lambda: RotatedQuadratics().shard(3, 3), r"RotatedQuadratics\.rank must be below size 3, got 3"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
