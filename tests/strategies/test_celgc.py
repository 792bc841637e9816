"""CELGC and its relatives: what the papers say must hold."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.workloads.convex import Quadratics, Quartics

SGD = partial(torch.optim.SGD, lr=0.1)


class SameEverywhere:
    """Every node draws the same gradients: identical batches."""

    def __init__(self, inner):
        self.inner, self.rng = inner, np.random.default_rng(7)
        self.start, self.loss = inner.start, inner.loss

    def gradient(self, x, rng):
        return self.inner.gradient(x, self.rng)

    def shard(self, rank, size):
        return SameEverywhere(self.inner)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_period_one_and_identical_batches_is_single_machine_clipping_bit_for_bit(size):
    problem = SameEverywhere(Quadratics(dim=5, heterogeneity=0.0, dtype=torch.float64))
    strategy = fs.CELGC(period=1, gamma=0.05)
    alone = fs.simulate(strategy, problem, nodes=1, steps=30, optimizer=SGD)
    together = fs.simulate(strategy, problem, nodes=size, steps=30, optimizer=SGD)
    assert alone.nodes[0].counts["clipped"] > 0
    for rank in range(size):
        assert torch.equal(together.models[rank], alone.models[0])


@pytest.mark.parametrize("period", [1, 4, 16])
def test_nodes_drift_no_further_than_twice_gamma_times_period(period):
    gamma, furthest = 0.05, []

    @dataclass(frozen=True)
    class Watched:
        async def run(self, node):
            step = node.step

            async def watched(g):
                await step(g)
                seen.setdefault(node.step_count, {})[node.rank] = node.params.clone()

            node.step = watched
            await fs.CELGC(period=period, gamma=gamma).run(node)

    seen: dict[int, dict[int, torch.Tensor]] = {}
    fs.simulate(Watched(), Quadratics(dim=5, noise=3.0), nodes=4, steps=48, optimizer=SGD)
    for models in seen.values():
        stacked = torch.stack([models[rank] for rank in range(4)])
        furthest.append(float((stacked - stacked.mean(0)).norm(dim=1).max()))
    assert max(furthest) <= 2 * gamma * period * (1 + 1e-5)
    # The bound is about something: nodes do drift.
    assert period == 1 or max(furthest) > gamma


@pytest.mark.cases(test=1)
@pytest.mark.parametrize(("H", "celgc_above"), [(4.0, 1.0), (8.0, 1.0)])
@pytest.mark.thorough
def test_quartics_episode_converges_where_celgc_stalls(H, celgc_above):
    lr = partial(torch.optim.SGD, lr=0.01)
    losses = {}
    for strategy in (fs.CELGC(period=4, gamma=0.05), fs.Episode(period=4, gamma=0.05)):
        trace = fs.simulate(strategy, Quartics(H=H), nodes=2, steps=4000, optimizer=lr, record_every=40)
        losses[type(strategy).__name__] = np.mean([row.loss for row in trace.rows[-20:]])
    assert losses["Episode"] < 0.01
    assert losses["CELGC"] > celgc_above


@pytest.mark.parametrize("kind", [fs.Episode, fs.EpisodePlus])
@pytest.mark.parametrize(
    ("heterogeneity", "noise", "least", "most"), [(0.0, 1.0, 0.0, 0.15), (1.0, 0.0, 0.99, 1.0), (1.0, 0.1, 0.8, 1.0)]
)
def test_corrections_are_as_large_as_what_comes_again(kind, heterogeneity, noise, least, most):
    """The noise of batches does not; what the nodes' data differ in does."""
    nodes = []

    class Watched(kind):
        async def run(self, node):
            nodes.append(node)
            await super().run(node)

    problem = Quadratics(dim=300, heterogeneity=heterogeneity, noise=noise)
    fs.simulate(Watched(period=4), problem, nodes=3, steps=80, optimizer=partial(torch.optim.SGD, lr=0.1))
    shares = [float(node.kept["share"]) for node in nodes]
    assert len(set(shares)) == 1
    assert least <= shares[0] <= most


@pytest.mark.parametrize("gamma", [0.05, 1e6])
def test_episode_alone_is_plain_clipped_sgd_on_its_own_gradients(gamma):
    problem = Quadratics(dim=5, noise=0.0, dtype=torch.float64)
    alone = fs.simulate(fs.Episode(period=1, gamma=gamma), problem, nodes=1, steps=30, optimizer=SGD)
    plain = fs.simulate(fs.CELGC(period=1, gamma=gamma), problem, nodes=1, steps=30, optimizer=SGD)
    torch.testing.assert_close(alone.models[0], plain.models[0], rtol=1e-12, atol=1e-12)


class Decayed(torch.optim.SGD):
    """SGD with the learning rate a tenth after ten steps, set as torch's schedulers set it."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self, [10], gamma=0.1)

    def step(self, closure=None):
        super().step(closure)
        self.schedule.step()


def longest_steps(strategy):
    lengths = []

    @dataclass(frozen=True)
    class Measured:
        async def run(self, node):
            step = node.step

            async def measured(g):
                before = node.params.clone()
                await step(g)
                lengths.append(float((node.params - before).norm()))

            node.step = measured
            await strategy.run(node)

    fs.simulate(Measured(), Quadratics(dim=5, noise=20.0), nodes=1, steps=20, optimizer=partial(Decayed, lr=0.1))
    return max(lengths[:10]), max(lengths[10:])


def test_gamma_decays_with_the_learning_rate():
    early, late = longest_steps(fs.CELGC(period=4, gamma=0.05))
    assert early == pytest.approx(0.05, rel=1e-5)
    assert late == pytest.approx(0.005, rel=1e-5)


def test_a_gamma_given_as_a_function_is_taken_as_it_stands():
    schedule = fs.clips.ClipStep(gamma=lambda step: 0.05 if step < 10 else 0.02)
    early, late = longest_steps(fs.LocalSGD(period=4, clip=schedule))
    assert early == pytest.approx(0.05, rel=1e-5)
    assert late == pytest.approx(0.02, rel=1e-5)


@dataclass(frozen=True)
class SometimesInfinite(Quadratics):
    """Every fifth gradient is not finite."""

    def gradient(self, x, rng):
        g = super().gradient(x, rng)
        return g * float("nan") if rng.random() < 0.2 else g


@pytest.mark.parametrize(
    "strategy",
    [
        fs.CELGC(period=4, gamma=0.05),
        fs.CELGCUpdate(period=4, gamma=0.05),
        fs.LocalSGD(period=4, clip=fs.clips.ClipNorm(max_norm=1.0)),
    ],
)
def test_a_step_whose_gradient_is_not_finite_is_skipped_and_counted(strategy):
    momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    trace = fs.simulate(strategy, SometimesInfinite(dim=5), nodes=3, steps=50, optimizer=momentum)
    assert all(node.skipped > 0 and node.steps == 50 for node in trace.nodes)
    assert all(torch.isfinite(model).all() for model in trace.models.values())


def test_without_a_clip_they_are_skipped_and_counted_as_well():
    trace = fs.simulate(fs.LocalSGD(period=4), SometimesInfinite(dim=5), nodes=3, steps=50, optimizer=SGD)
    assert torch.isfinite(trace.model).all()
    assert all(node.skipped == node.counts["not finite"] > 0 for node in trace.nodes)


def test_clipping_the_gradient_does_not_bound_a_momentum_step_but_clipping_the_update_does():
    momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    lengths = {}
    for strategy in (fs.CELGC(period=50, gamma=0.05), fs.CELGCUpdate(period=50, gamma=0.05)):
        problem = Quadratics(dim=5, noise=0.0, condition=1.0)
        trace = fs.simulate(strategy, problem, nodes=1, steps=10, optimizer=momentum)
        lengths[type(strategy).__name__] = float(trace.models[0].norm()) / 10
    assert lengths["CELGCUpdate"] <= 0.05 * (1 + 1e-5)
    assert lengths["CELGC"] > 0.1


# A clip that never clips ---------------------------------------------------------------------------------------------

NEVER = {
    "CELGC.gamma = 1000000.0 clipped none of the first 100 steps: the longest was": fs.CELGC(period=4, gamma=1e6),
    "CELGCUpdate.gamma = 1000000.0 clipped none": fs.CELGCUpdate(period=4, gamma=1e6),
    "ClipStep.gamma = 1000000.0 clipped none": fs.LocalSGD(period=4, clip=fs.clips.ClipStep(gamma=1e6)),
    "ClipStep.gamma = a function clipped none": fs.LocalSGD(period=4, clip=fs.clips.ClipStep(gamma=lambda step: 1e6)),
    "ClipNorm.max_norm = 500.0 clipped none of the first 100 gradients": fs.DataParallel(
        clip=fs.clips.ClipNorm(max_norm=500.0)
    ),
    "Episode.gamma = 1000000.0 clipped none of the first 100 steps, by the mean gradient": fs.Episode(
        period=4, gamma=1e6
    ),
    "EpisodePlus.gamma = 1000000.0 clipped none": fs.EpisodePlus(period=4, gamma=1e6, sampled=1),
}


def warnings_of(caplog, strategy, *, nodes=1, steps=103, engine="events"):
    caplog.clear()
    trace = fs.simulate(strategy, Quadratics(dim=5), nodes=nodes, steps=steps, optimizer=SGD, engine=engine)
    return trace, [record.getMessage() for record in caplog.records if record.name == "flockstep"]


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("sentence", NEVER)
@pytest.mark.cases(check=2, test=7)
def test_a_threshold_that_nothing_reaches_is_told_of_once(caplog, sentence, nodes):
    trace, told = warnings_of(caplog, NEVER[sentence], nodes=nodes, steps=103 * nodes)
    assert [line.startswith(sentence) for line in told] == [True]
    assert all(node.counts["clipped"] == 0 for node in trace.nodes)


@pytest.mark.parametrize("engine", ["events", "stacked"])
@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.slow
def test_neither_a_short_run_nor_one_clip_is_worth_a_word(caplog, nodes, engine):
    assert warnings_of(caplog, fs.CELGC(period=4, gamma=1e6), nodes=nodes, steps=99, engine=engine)[1] == []
    trace, told = warnings_of(caplog, fs.CELGC(period=4, gamma=0.3), nodes=nodes, engine=engine)
    assert told == []
    assert 0 < trace.nodes[0].counts["clipped"] < 103


@pytest.mark.slow
def test_the_longest_step_is_named_and_both_engines_name_the_same(caplog):
    for strategy in (fs.CELGC(period=4, gamma=1e6), fs.DataParallel(clip=fs.clips.ClipNorm(max_norm=1e3))):
        runs = [warnings_of(caplog, strategy, nodes=3, engine=engine) for engine in ("events", "stacked")]
        assert runs[0][1] == runs[1][1]
        assert len(runs[0][1]) == 1
        assert all(node.counts == {"clipped": 0} for trace, _ in runs for node in trace.nodes)
    _, (told,) = warnings_of(caplog, fs.CELGC(period=1000, gamma=1e6), steps=100)
    longest = float(told.partition("the longest was ")[2].partition(",")[0])
    # A threshold a little below the step that was named clips once; a little above, never.
    for factor, clips in ((0.999, 1), (1.001, 0)):
        trace, _ = warnings_of(caplog, fs.CELGC(period=1000, gamma=factor * longest), steps=100)
        assert trace.nodes[0].counts["clipped"] == clips


@pytest.mark.slow
def test_in_a_loop_the_report_says_so_from_the_first_step_on(caplog):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with fs.join(model, optimizer, fs.CELGC(period=4, gamma=1e6)) as node:
        for _ in range(120):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().mean().backward()
            optimizer.step()
            assert node.report().counts["clipped"] == 0
    assert len([record for record in caplog.records if "CELGC.gamma" in record.getMessage()]) == 1


# A learning rate of 0 ------------------------------------------------------------------------------------------------


def test_update_clipping_with_a_learning_rate_of_zero_stands_still():
    trace = fs.simulate(
        fs.CELGCUpdate(period=4, gamma=0.05),
        Quadratics(dim=5),
        nodes=2,
        steps=10,
        optimizer=partial(torch.optim.SGD, lr=0.0),
    )
    assert all(torch.equal(model, Quadratics(dim=5).start()) for model in trace.models.values())


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_a_first_group_that_does_not_learn_tells_nothing_of_the_schedule(decay):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[1].parameters(), "lr": 10.0}]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
    lengths = []
    with fs.join(model, optimizer, fs.CELGCUpdate(period=100, gamma=0.01)) as node:
        for _ in range(3):
            before = node.params.clone()
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
            schedule.step()
            lengths.append(float((node.params - before).norm()))
    assert lengths == pytest.approx([0.01 * decay**k for k in range(3)], rel=1e-4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fs.LocalSGD(period=0), "LocalSGD.period must be at least 1, got 0"),
        (lambda: fs.LocalSGD(period=2.0), "LocalSGD.period must be a whole number, got 2.0"),
        (lambda: fs.LocalSGD(period=True), "LocalSGD.period must be a whole number, got True"),
        (lambda: fs.LocalSGD(period=2, clip=fs.clips.NoClip), "with parentheses"),
        (lambda: fs.LocalSGD(period=2, average=3), "LocalSGD.average must be an average"),
        (lambda: fs.CELGC(period=2, gamma=0), "CELGC.gamma must be positive, got 0"),
        (lambda: fs.CELGC(period=2, gamma=float("nan")), "CELGC.gamma must be finite, got nan"),
        (lambda: fs.Episode(period=-1, gamma=1.0), "Episode.period must be at least 1, got -1"),
        (lambda: fs.EpisodePlus(period=1, gamma=1.0, sampled=0), "EpisodePlus.sampled must be at least 1, got 0"),
        (lambda: fs.clips.ClipNorm(max_norm=-1.0), "ClipNorm.max_norm must be positive, got -1.0"),
        (lambda: fs.clips.ClipStep(gamma="1"), "ClipStep.gamma must be a number, got '1'"),
        (lambda: fs.averages.Coded(codec=fs.codecs.Raw), "with parentheses"),
        (lambda: fs.DataParallel(clip=None), "DataParallel.clip must be a clip"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(make, sentence):
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert sentence in str(caught.value)
