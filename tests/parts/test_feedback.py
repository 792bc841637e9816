"""Error feedback: nothing is lost, only late; and a checkpoint does not lose it either."""

from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import flockstep as fs
from flockstep.workloads.convex import Quadratics


class Alone:
    """As much of a node as feedback needs."""

    def __init__(self):
        self.rng, self.kept = np.random.default_rng(0), {}

    def keep(self, name, tensor, *, own=False):
        self.kept[name] = tensor
        return tensor


def vectors(count, steps, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(3).standard_normal((steps, count))).to(dtype)


@pytest.mark.parametrize("count", [1, 2, 103])
def test_twenty_steps_as_numpy_takes_them(count):
    node, k = Alone(), -(-count // 10)
    feedback = fs.averages.Feedback(fs.codecs.TopK(fraction=0.1), node, torch.zeros(count, dtype=torch.float64))
    e = np.zeros(count)
    for v in vectors(count, 20):
        p = v.numpy() + e
        kept = np.argsort(-np.abs(p), kind="stable")[:k]
        sent = np.zeros(count)
        sent[kept] = p[kept]
        e = p - sent
        message = feedback.encode(v)
        np.testing.assert_allclose(fs.codecs.TopK(fraction=0.1).decode(message, v).numpy(), sent, rtol=0, atol=1e-12)
        np.testing.assert_allclose(feedback.sent.numpy(), sent, rtol=0, atol=1e-12)
        np.testing.assert_allclose(node.kept["residual"].numpy(), e, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "codec",
    [fs.codecs.TopK(fraction=0.05), fs.codecs.Cast(dtype="bf16"), fs.codecs.Stochastic(bits=2), fs.codecs.Raw()],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_what_was_sent_and_the_residual_are_all_that_was_put_in(codec, dtype):
    stream = vectors(50, 30, dtype)
    feedback = fs.averages.Feedback(codec, Alone(), stream[0])
    sent = torch.zeros(50, dtype=torch.float64)
    for v in stream:
        feedback.encode(v)
        assert feedback.sent.dtype == dtype
        sent += feedback.sent.double()
    # Thirty additions, each rounded in the residual's dtype, of numbers of this size.
    size = float(stream.double().abs().sum(0).max())
    within = 30 * size * torch.finfo(feedback.residual.dtype).eps
    torch.testing.assert_close(sent + feedback.residual.double(), stream.double().sum(0), rtol=0, atol=within)


def test_a_vector_that_cannot_be_coded_leaves_the_residual_as_it_was():
    feedback = fs.averages.Feedback(fs.codecs.TopK(fraction=0.5), Alone(), torch.zeros(4))
    feedback.encode(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    before = feedback.residual.clone()
    with pytest.raises(fs.CodecRange):
        feedback.encode(torch.tensor([1.0, float("nan"), 3.0, 4.0]))
    assert torch.equal(feedback.residual, before)


def test_a_codec_that_leaves_nothing_out_makes_it_the_coded_mean():
    losses = [
        fs.simulate(fs.DataParallel(average=average), Quadratics(dim=7), nodes=3, steps=10, optimizer=sgd(0.1)).loss
        for average in (fs.averages.Coded(codec=fs.codecs.Raw()), fs.averages.Compensated(codec=fs.codecs.Raw()))
    ]
    assert losses[0] == losses[1]


def sgd(lr):
    return partial(torch.optim.SGD, lr=lr)


def above_the_optimum(average, nodes):
    """How far from the least loss it ends, at a rate and at half of it with twice the steps."""
    problem = Quadratics(dim=40, noise=0.0, condition=2.0, dtype=torch.float64)
    whole, strategy = problem.shard(0, nodes), fs.DataParallel(average=average)
    for lr, steps in ((0.4, 50), (0.2, 100)):
        trace = fs.simulate(strategy, problem, nodes=nodes, steps=steps, optimizer=sgd(lr))
        yield trace.loss - whole.loss(whole.optimum())


@pytest.mark.parametrize("nodes", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.cases(test=1)
@pytest.mark.slow
def test_with_feedback_the_largest_few_lead_to_the_optimum_and_without_they_do_not(nodes):
    """What is late is late by a number of steps: how far off that leads goes with the learning rate, to nothing."""
    fast, slow = above_the_optimum(fs.averages.Compensated(codec=fs.codecs.TopK(fraction=0.2)), nodes)
    # The loss is a square: half the rate is about a quarter of it, unless there is nothing left.
    assert slow < max(fast / 2, 1e-6)
    # Without, each node pulls in directions of its own, at any rate. One alone does arrive, but much later.
    fast_without, slow_without = above_the_optimum(fs.averages.Coded(codec=fs.codecs.TopK(fraction=0.2)), nodes)
    assert slow_without > fast_without / 2
    assert slow_without > 10 * slow


STEPS = 17


FEW = fs.DataParallel(average=fs.averages.Compensated(codec=fs.codecs.TopK(fraction=0.1)))


def loop(folder, stop_at=None, strategy=FEW):
    """A user's loop, with data drawn anew each step."""

    def body():
        torch.manual_seed(fs.rank())
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        with fs.join(model, optimizer, strategy, resume=folder, save_every=3) as node:
            while node.step_count < STEPS:
                if node.step_count == stop_at:
                    raise KeyError("interrupted")
                x = torch.randn(8, 4)
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    return body


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_residuals_bit_for_bit(nodes, tmp_path):
    whole = fs.simulate(loop(tmp_path / "whole"), nodes=nodes).results
    with pytest.raises(fs.NodeFailed, match="interrupted"):
        fs.simulate(loop(tmp_path / "cut", stop_at=11), nodes=nodes)
    saved = load_file(tmp_path / "cut" / "step-00000009" / "node-0000.safetensors")
    assert any(saved[f"kept/gradient: {name}"].any() for name in ("residual", "residual of the mean"))
    again = fs.simulate(loop(tmp_path / "cut"), nodes=nodes).results
    for rank in range(nodes):
        assert all(torch.equal(one, other) for one, other in zip(whole[rank], again[rank], strict=True))


def test_a_checkpoint_between_two_rounds_holds_residuals_that_no_round_has_used_since(tmp_path):
    rarely = fs.LocalSGD(period=8, average=fs.averages.Compensated(codec=fs.codecs.Cast(dtype="bf16")))
    whole = fs.simulate(loop(tmp_path / "whole", strategy=rarely), nodes=1).results
    # One node: of several that wait for nobody, some would be cut off before their checkpoint.
    for stop_at in (11, 13):  # after the first it goes on from 9, after the second from 12; rounds are at 8 and 16
        with pytest.raises(fs.NodeFailed, match="interrupted"):
            fs.simulate(loop(tmp_path / "cut", stop_at, rarely), nodes=1)
    again = fs.simulate(loop(tmp_path / "cut", strategy=rarely), nodes=1).results
    assert all(torch.equal(one, other) for one, other in zip(whole[0], again[0], strict=True))


def test_a_vector_unlike_the_model_is_refused():
    class Short:
        async def run(self, node):
            await fs.averages.Compensated(codec=fs.codecs.Raw()).start(node, "short")(node.params[:1])

    with pytest.raises(fs.NodeFailed, match="Compensated averages vectors like the model, of 7 numbers, got 1"):
        fs.simulate(Short(), Quadratics(dim=7), nodes=2, steps=1, optimizer=sgd(0.1))


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"Compensated\.codec must be a codec such as TopK\(fraction=0\.01\), got 8"):
        fs.averages.Compensated(codec=8)
