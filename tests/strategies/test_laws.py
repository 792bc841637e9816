"""The laws, over every strategy, average, codec and topology."""

from dataclasses import dataclass

import pytest
import torch

import flockstep as fs
from flockstep.testing import LawBroken, check_strategy, check_synchronous

AVERAGES = {
    "exact": fs.averages.Exact(),
    "raw": fs.averages.Coded(codec=fs.codecs.Raw()),
    "ring": fs.averages.Mixed(topology=fs.topologies.Ring(), codec=fs.codecs.Raw()),
    "torus": fs.averages.Mixed(topology=fs.topologies.Torus(), codec=fs.codecs.Raw()),
    "exponential": fs.averages.Mixed(topology=fs.topologies.Exponential(), codec=fs.codecs.Raw()),
    "star": fs.averages.Mixed(topology=fs.topologies.Star(), codec=fs.codecs.Raw()),
    "complete": fs.averages.Mixed(topology=fs.topologies.Complete(), codec=fs.codecs.Raw()),
}
WIDE = 1e6
STRATEGIES = {
    "DataParallel": lambda average: fs.DataParallel(average=average),
    "DataParallel clipped": lambda average: fs.DataParallel(clip=fs.clips.ClipNorm(max_norm=WIDE), average=average),
    "LocalSGD": lambda average: fs.LocalSGD(period=4, average=average),
    "LocalSGD every step": lambda average: fs.LocalSGD(period=1, average=average),
    "CELGC": lambda average: fs.CELGC(period=4, gamma=WIDE, average=average),
    "CELGC by default": lambda average: fs.CELGC(period=4, average=average),
    "CELGCUpdate": lambda average: fs.CELGCUpdate(period=4, gamma=WIDE, average=average),
    "Episode": lambda average: fs.Episode(period=4, gamma=WIDE, average=average),
    "Episode by default": lambda average: fs.Episode(period=4, average=average),
}


FAST = ("exact",)


@pytest.mark.parametrize(
    "average", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in AVERAGES]
)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.cases(check=4, test=9)
def test_every_strategy_with_every_average(strategy, average):
    made = STRATEGIES[strategy](AVERAGES[average])
    check_strategy(made)
    check_synchronous(made)


@pytest.mark.parametrize("average", ["exact", "raw", "complete"])
@pytest.mark.parametrize("size", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.cases(test=1)
@pytest.mark.slow
def test_episode_plus_with_everybody_at_work(size, average):
    # With some standing by, stored gradients are of different rounds, and equal data is not plain SGD any more.
    for made in (
        fs.EpisodePlus(period=4, average=AVERAGES[average]),
        fs.EpisodePlus(period=4, gamma=WIDE, sampled=size, average=AVERAGES[average]),
    ):
        check_strategy(made, nodes=(size,))
        check_synchronous(made, nodes=(size,))


@pytest.mark.slow
def test_a_rounding_codec_is_near_sgd():
    for codec, tolerance in ((fs.codecs.Cast(dtype="fp16"), 2e-3), (fs.codecs.Cast(dtype="bf16"), 2e-2)):
        check_strategy(fs.LocalSGD(period=4, average=fs.averages.Coded(codec=codec)), tolerance=tolerance)


@dataclass(frozen=True)
class Forgetful:
    """Loses the last step of each round."""

    async def run(self, node):
        async for k in node.steps():
            g = await node.gradient(node.params)
            await node.step(None if k % 4 == 3 else g)


@dataclass(frozen=True)
class Talkative:
    """Sends what nobody reads."""

    async def run(self, node):
        for peer in node.peers():
            node.send(peer, fs.codecs.Raw().encode(node.params, node.rng))
        async for _ in node.steps():
            await node.step(await node.gradient(node.params))


@dataclass(frozen=True)
class Restless:
    """Different every time it is run."""

    async def run(self, node):
        async for _ in node.steps():
            await node.step(await node.gradient(node.params))
        node.params[0] += 1e-13 * torch.rand(())


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (Forgetful(), "away from plain SGD"),
        (Talkative(), "messages unread"),
        (Restless(), "gives another outcome"),
        (fs.EpisodePlus(period=4, gamma=WIDE, sampled=3), "does not run on 1 nodes"),
    ],
)
def test_the_laws_can_fail(broken, sentence):
    with pytest.raises(LawBroken, match=sentence):
        check_strategy(broken)
