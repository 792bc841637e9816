from itertools import product

import numpy as np
import pytest
import torch

from flockstep.workloads.convex import Logistic, Quadratics, Quartics
from flockstep.workloads.noises import AlphaStable, CauchyMixture, LogTail, StudentT
from flockstep.workloads.noisy import Noisy
from flockstep.workloads.rotated import RotatedQuadratics
from flockstep.workloads.workload import stacked

torch.set_num_threads(1)

RNG = np.random.default_rng(7)
# 41 rows: nodes get different numbers of them.
DATA = RNG.standard_normal((41, 5)), np.where(RNG.random(41) < 0.3, 1.0, -1.0)


def logistic(dtype=torch.float64, **changes):
    return Logistic(**{"data": DATA, "batch": 3, "heterogeneity": 0.5, "l2": 0.1, "dtype": dtype, **changes})


EVERY = {
    "quadratics": Quadratics(dim=5, dtype=torch.float64, noise=0.7, heterogeneity=0.5),
    "quadratics32": Quadratics(dim=5, noise=0.7),
    "quiet quadratics": Quadratics(dim=1, dtype=torch.float64, noise=0.0),
    "quartics": Quartics(noise=0.3),
    "quiet quartics": Quartics(noise=0.0),
    "logistic": logistic(),
    "logistic32": logistic(torch.float32, batch=1),
    "logistic without l2": logistic(l2=0.0),
    "rotated": RotatedQuadratics(),
    "rotated line": RotatedQuadratics(dim=1),
    "noisy rotated": Noisy(workload=RotatedQuadratics(dim=3), noise=LogTail(), scale=2.0),
    "noisy quadratics": Noisy(workload=Quadratics(dim=5, dtype=torch.float64), noise=StudentT(df=1.5)),
    "noisy quiet quadratics32": Noisy(workload=Quadratics(dim=4, noise=0.0), noise=CauchyMixture(share=0.2)),
    "noisy quartics": Noisy(workload=Quartics(), noise=AlphaStable(alpha=1.3)),
    "noisy logistic": Noisy(workload=logistic(), noise=CauchyMixture(share=0.5), scale=0.1),
    "noisy logistic32": Noisy(workload=logistic(torch.float32), noise=StudentT(df=3.0)),
    "noise on noise": Noisy(workload=Noisy(workload=RotatedQuadratics(dim=2)), noise=LogTail()),
}


@pytest.mark.parametrize("name", EVERY)
def test_the_same_numbers_as_one_node_at_a_time(name):
    for runs, nodes, steps in product([1, 3], [1, 2, 5], [1, 7]):
        check_the_same_numbers(EVERY[name], runs, nodes, steps)


def check_the_same_numbers(workload, runs, nodes, steps):
    together, start = stacked(workload, nodes), workload.start()
    shards = [workload.shard(rank, nodes) for rank in range(nodes)]
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((steps, runs, nodes, len(start)))).to(start)
    places = [[(run, rank) for rank in range(nodes)] for run in range(runs)]
    plain = {place: np.random.default_rng(place) for row in places for place in row}
    blocks = {place: np.random.default_rng(place) for row in places for place in row}
    drawn = [[together.draw(rank, blocks[run, rank], steps) for run, rank in row] for row in places]
    for k in range(steps):
        at_k = tuple(
            np.array([[part[k] for part in row] for row in ([d[number] for d in line] for line in drawn)])
            for number in range(len(drawn[0][0]))
        )
        g = together.gradient(x[k], at_k)
        expected = torch.stack(
            [torch.stack([shards[i].gradient(x[k, r, i], plain[r, i]) for i in range(nodes)]) for r in range(runs)]
        )
        assert g.dtype == expected.dtype == start.dtype
        assert g.is_contiguous()
        rtol = 1e-12 if start.dtype == torch.float64 else 1e-5
        # Relative to the vector, for a coordinate may cancel to nearly nothing.
        assert (g - expected).norm() <= rtol * expected.norm()
    assert all(plain[place].bit_generator.state == blocks[place].bit_generator.state for place in plain)


@pytest.mark.parametrize("name", EVERY)
def test_the_gradient_is_new_and_x_is_left_alone(name):
    workload = EVERY[name]
    together = stacked(workload, 2)
    x = torch.ones(3, 2, len(workload.start()), dtype=workload.start().dtype, requires_grad=True)
    drawn = tuple(np.stack([np.stack([part[0]] * 2)] * 3) for part in together.draw(0, np.random.default_rng(0), 1))
    copies = [part.copy() for part in drawn]
    g = together.gradient(x, drawn)
    assert not g.requires_grad
    again = g.clone()
    g.zero_()
    assert torch.equal(x, torch.ones_like(x))
    assert all(np.array_equal(a, b) for a, b in zip(drawn, copies, strict=True))
    assert torch.equal(together.gradient(x, drawn), again)


@pytest.mark.parametrize("name", EVERY)
def test_a_diverged_x_is_no_error(name):
    workload = EVERY[name]
    for far in (1e38, 1e200, float("inf"), float("nan")):
        x = torch.full((1, 2, len(workload.start())), far, dtype=torch.float64).to(workload.start())
        drawn = [stacked(workload, 2).draw(rank, np.random.default_rng(rank), 1) for rank in range(2)]
        together = tuple(np.stack([a[0], b[0]])[None] for a, b in zip(*drawn, strict=True))
        with np.errstate(all="ignore"):
            assert stacked(workload, 2).gradient(x, together).shape == x.shape, far


def test_a_view_that_is_not_contiguous_will_do():
    workload = EVERY["noisy rotated"]
    wide = torch.from_numpy(np.random.default_rng(1).standard_normal((5, 4, 6)))
    x, noise = wide.transpose(0, 1)[:, :, ::2], np.zeros((4, 5, 3))
    together = stacked(workload, 5)
    assert torch.allclose(together.gradient(x, (noise,)), together.gradient(x.contiguous(), (noise,)))


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 3), (2, 3)])
def test_any_shard_stacks_the_same(rank, size):
    for workload in (Quadratics(dim=3), RotatedQuadratics(dim=3), logistic(), Quartics()):
        x = torch.ones(1, 2, len(workload.start()), dtype=workload.start().dtype)
        drawn = tuple(part[None].repeat(2, 1) for part in stacked(workload, 2).draw(1, np.random.default_rng(0), 1))
        g = stacked(workload, 2).gradient(x, drawn)
        assert torch.equal(g, stacked(workload.shard(rank, size), 2).gradient(x, drawn))


class Plain:
    """A workload with no ``stack``."""

    def start(self):
        return torch.zeros(2)

    def gradient(self, x, rng):
        return x.clone()

    def loss(self, x):
        return 0.0

    def shard(self, rank, size):
        return self


def test_a_workload_that_cannot_says_none():
    assert stacked(Plain(), 3) is None
    assert stacked(Noisy(workload=Plain()), 3) is None
    assert stacked(Noisy(workload=Noisy(workload=Plain())), 3) is None
