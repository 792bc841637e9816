"""What is recorded and replayed gives what is done plainly; on a GPU with its own tapes, elsewhere with one of ours."""

from functools import partial

import pytest
import torch
from torch import nn

pytest.importorskip("gymnasium", reason="needs pip install 'flockstep[rl]'")

from sides import Sides

from flockstep.rl.environments.copies import InProcess
from flockstep.rl.environments.spaces import Actions
from flockstep.rl.nets import recorded, torch_worker
from flockstep.rl.nets.passes import LayerPasses, RecordedPasses
from flockstep.rl.nets.recorded import Recorded
from flockstep.rl.nets.shared import Shared
from flockstep.rl.nets.torch_engine import TorchEngine
from flockstep.rl.policies.networks import ActorCritic, Images
from flockstep.rl.settings import Settings


class Tape:
    """As a GPU's: inputs and results stay where they were when it was made."""

    made = 0

    def __init__(self, work, given, generator):
        type(self).made += 1
        self._work, self._inputs = work, [None if each is None else each.clone() for each in given]
        # What is recorded is not done yet.
        self._outputs = None

    def play(self, given):
        for here, there in zip(self._inputs, given, strict=True):
            if here is not None:
                here.copy_(there)
        news = self._work(*self._inputs)
        if self._outputs is None:
            self._outputs = [None if each is None else each.clone() for each in news]
        for here, new in zip(self._outputs, news, strict=True):
            if here is not None:
                here.copy_(new)
        return tuple(self._outputs)


@pytest.fixture
def tapes(monkeypatch):
    monkeypatch.setattr(recorded, "Tape", Tape)
    monkeypatch.setattr(Tape, "made", 0)
    return Tape


def test_the_third_time_is_recorded_and_says_the_same(tapes):
    double = Recorded(lambda x, y: (2 * x if y is None else x + y, None))
    for number in range(5):
        x = torch.full((3,), float(number))
        assert double(x, None)[0].tolist() == [2 * number] * 3
        assert double(x, x)[0].tolist() == [2 * number] * 3
        assert double(x, None)[1] is None
    assert tapes.made == 2
    # Asked twice a round, the first kind was recorded in the second one: its results lie where they lay.
    assert double(x, None)[0] is double(x, None)[0]


def test_of_many_shapes_only_some_are_recorded(tapes):
    double = Recorded(lambda x: (2 * x,))
    for _ in range(4):
        for size in range(1, 8):
            assert double(torch.ones(size))[0].tolist() == [2] * size
    assert tapes.made == recorded._KINDS


def policy_on(device, kind):
    torch.manual_seed(3)
    actions = {
        "choices": Actions(True, 2),
        "reals": Actions(False, 2),
        "several": Actions(True, 5, parts=(2, 3)),
    }[kind]
    trunk = nn.Sequential(nn.Conv2d(1, 4, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(100, 16), nn.Tanh())
    return ActorCritic(Images((12, 12, 1)), trunk, 16, actions).to(device)


class Reals(Sides):
    """The same with real numbers as actions: their sum says which side."""

    def __init__(self):
        super().__init__()
        from gymnasium.spaces import Box

        self.action_space = Box(-1, 1, (2,))

    def step(self, action):
        return super().step(float(action.sum()) > 0)


class Several(Sides):
    """The same with two choices at once: the first says which side."""

    def __init__(self):
        super().__init__()
        from gymnasium.spaces import MultiDiscrete

        self.action_space = MultiDiscrete([2, 3])

    def step(self, action):
        return super().step(action[0])


GAMES = {"choices": Sides, "reals": Reals, "several": Several}


def trained(passes, monkeypatch, device, *, kind, threads=1, **settings):
    monkeypatch.setattr(torch_worker, "passes_of", passes)
    numbers = Settings(threads=threads, envs_per_thread=3, n_steps=4, **settings)
    policy = policy_on(device, kind)
    engine = TorchEngine(policy, partial(InProcess, GAMES[kind], 3), numbers, in_turns=True)
    told = []
    engine.train(since=0, until=12 * 15, tell=lambda tally: told.append(tally) or True)
    engine.close()
    return nn.utils.parameters_to_vector(policy.parameters()).detach().cpu(), engine.state()["square_avg"], told


CASES = pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("choices", {}),
        ("reals", {}),
        ("several", {"ent_coef": 0.02}),
        ("choices", {"gae_lambda": 0.9, "normalize_advantage": True, "ent_coef": 0.02}),
    ],
    ids=["choices", "reals", "several", "GAE"],
)


@CASES
@pytest.mark.slow
def test_a_recorded_worker_is_a_plain_one(tapes, monkeypatch, kind, settings):
    # As where the vectors are on a device.
    monkeypatch.setattr(Shared, "on_host", False)
    plain = trained(LayerPasses, monkeypatch, "cpu", kind=kind, **settings)
    assert tapes.made == 0
    found = trained(RecordedPasses, monkeypatch, "cpu", kind=kind, **settings)
    # Four passes to act, one beyond them (two where time limits cut episodes), and read, draw, learn, write.
    assert tapes.made >= 9
    assert torch.equal(found[0], plain[0])
    assert torch.equal(found[1], plain[1])
    assert [tally.returns for tally in found[2]] == [tally.returns for tally in plain[2]]
    assert [tally.policy_loss for tally in found[2]] == [tally.policy_loss for tally in plain[2]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@CASES
def test_a_gpu_replays_what_it_did_plainly(monkeypatch, kind, settings):
    plain = trained(LayerPasses, monkeypatch, "cuda", kind=kind, **settings)
    found = trained(RecordedPasses, monkeypatch, "cuda", kind=kind, **settings)
    torch.testing.assert_close(found[0], plain[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1], plain[1], rtol=1e-5, atol=1e-6)
    assert [tally.returns for tally in found[2]] == [tally.returns for tally in plain[2]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_several_workers_replay_on_one_gpu(monkeypatch):
    before = nn.utils.parameters_to_vector(policy_on("cpu", "choices").parameters())
    found, squares, _ = trained(RecordedPasses, monkeypatch, "cuda", kind="choices", threads=3)
    assert found.isfinite().all()
    assert squares.isfinite().all()
    assert not torch.equal(found, before)
