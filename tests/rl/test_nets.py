"""The torch engine: gradients against autograd of the written loss, one update against NumPy, and what trains."""

import math
import os
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
from sides import Glance, Sides, until_it_knows_sides, vector
from torch import nn

from flockstep.errors import Diverged, NodeFailed
from flockstep.rl.environments.copies import Step
from flockstep.rl.environments.spaces import Actions, Observations
from flockstep.rl.nets.passes import GraphPasses, LayerPasses, passes_of
from flockstep.rl.nets.shared import Shared, write
from flockstep.rl.nets.torch_engine import TorchEngine
from flockstep.rl.nets.torch_worker import Worker
from flockstep.rl.policies.mlp import MlpPolicy
from flockstep.rl.policies.networks import POLICIES
from flockstep.rl.rmsprop import RMSpropTF
from flockstep.rl.settings import Settings

IMAGES, ROWS = Observations((2, 36, 40), dtype="uint8"), Observations((3,))
CHOICES, NUMBERS = Actions(True, 4), Actions(False, 2, (2,), low=(-9.0, -9.0), high=(9.0, 9.0))
SEVERAL = Actions(True, 9, (3,), (0, 0, 0), parts=(3, 2, 4))


class Scripted:
    """Environments that do what was written down, and write down what they were told."""

    def __init__(self, count, observations, actions, steps, *, begins_late=False):
        self.count, self.observations, self.actions = count, observations, actions
        rng = np.random.default_rng(7)
        shape = (2 * steps + 1, count, *observations.shape)
        images = observations.dtype == "uint8"
        self.frames = rng.integers(0, 256, shape, np.uint8) if images else rng.normal(size=shape)
        self.rewards = rng.normal(size=(steps, count))
        self.terminated = np.zeros((steps, count), bool)
        self.truncated = np.zeros((steps, count), bool)
        self.counts = np.ones((steps, count), bool)
        self.terminated[1, 0] = True
        self.truncated[steps - 2, -1] = True
        # Both at once: that is an end.
        self.terminated[steps - 1, count // 2] = self.truncated[steps - 1, count // 2] = True
        if begins_late:
            self.counts[2, 0] = self.counts[steps - 1, -1] = False
        self.steps, self.at, self.told = steps, 0, []

    def reset(self, seed=None):
        return self.frames[0]

    def step(self, drawn):
        self.told.append(drawn.copy())
        t, self.at = self.at, self.at + 1
        finals = self.frames[t + 1].copy()
        ended = self.terminated[t] | self.truncated[t]
        finals[ended] = self.frames[self.steps + 1 + t][ended]
        return Step(self.frames[t + 1], self.rewards[t], self.terminated[t], self.truncated[t], finals, self.counts[t])

    def final(self, t):
        return self.frames[self.steps + 1 + t]

    def close(self):
        pass


class OwnNetwork(nn.Module):
    """What a user may write: a spread that depends on what is seen, values in a column, a parameter nobody uses."""

    def __init__(self, inputs, actions):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.SiLU())
        self.mean, self.log_std_of, self.value = nn.Linear(16, actions), nn.Linear(16, actions), nn.Linear(16, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, observations):
        x = self.trunk(observations.to(self.mean.weight.dtype) / 255)
        return (self.mean(x), self.log_std_of(x)), self.value(x)


def policy_named(name):
    torch.manual_seed(3)
    if name == "own":
        return OwnNetwork(IMAGES.size, 2), IMAGES, NUMBERS
    if name == "continuous MLP":
        return MlpPolicy(3, 2, discrete=False, actor=(8,), critic=(8,)), ROWS, NUMBERS
    if name == "ReLU MLP":
        return MlpPolicy(3, 2, discrete=False, actor=(8,), critic=(8,), activation=nn.ReLU), ROWS, NUMBERS
    if name == "continuous CNN":
        return POLICIES["A3CPolicy"](IMAGES, NUMBERS), IMAGES, NUMBERS
    if name == "several choices MLP":
        return MlpPolicy(3, 9, discrete=True, actor=(8,), critic=(8,)), ROWS, SEVERAL
    if name == "several choices CNN":
        return POLICIES["A3CPolicy"](IMAGES, SEVERAL), IMAGES, SEVERAL
    return POLICIES[name](IMAGES, CHOICES), IMAGES, CHOICES


def written_loss(policy, played, settings):
    """The loss as the documentation has it, one sample after another, of what environments saw and were told."""

    def seen(frames):
        given, values = policy(torch.from_numpy(np.ascontiguousarray(frames)))
        if isinstance(given, torch.Tensor) and getattr(policy, "log_std", None) is not None:
            given = (given, policy.log_std)
        return given, values.reshape(-1)

    samples = []
    for i in range(played.count):
        with torch.no_grad():
            beyond = seen(played.frames[played.steps][i : i + 1])[1].item()
        for t in range(played.steps - 1, -1, -1):
            if played.terminated[t, i]:
                beyond = 0.0
            elif played.truncated[t, i]:
                with torch.no_grad():
                    beyond = seen(played.final(t)[i : i + 1])[1].item()
            beyond = played.rewards[t, i] + settings.gamma * beyond
            given, value = seen(played.frames[t][i : i + 1])
            if played.counts[t, i]:
                samples.append((*likelihood(given, played.told[t][i], played.actions.parts), value[0], beyond))
            beyond = settings.gae_lambda * beyond + (1 - settings.gae_lambda) * value.item()
    advantages = np.array([R - v.item() for _, _, v, R in samples])
    if settings.normalize_advantage and len(samples) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    policy_loss = sum(-log_p * A for (log_p, *_), A in zip(samples, advantages, strict=True)) / len(samples)
    value_loss = sum((R - v) ** 2 for _, _, v, R in samples) / len(samples)
    entropy = sum(h for _, h, _, _ in samples) / len(samples)
    return policy_loss, value_loss, entropy


def likelihood(given, action, parts):
    if parts:
        rows = zip(given[0].split(parts), action, strict=True)
        log_ps, entropies = zip(*(likelihood(row[None], chosen, ()) for row, chosen in rows), strict=True)
        return sum(log_ps), sum(entropies)
    if isinstance(given, torch.Tensor):
        p = torch.exp(given[0]) / torch.exp(given[0]).sum()
        return torch.log(p[int(action)]), -(p * torch.log(p)).sum()
    mean, std = given[0][0], torch.exp(given[1].reshape(-1, len(action))[0])
    action = torch.from_numpy(action)
    density = torch.exp(-0.5 * ((action - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    return torch.log(density).sum(), torch.log(std * math.sqrt(2 * math.pi * math.e)).sum()


def worker_of(policy, environments, settings, seed=0):
    return Worker(policy, environments, Shared.of(policy, 1), settings, number=0, seed=seed)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    "name",
    [
        "CnnPolicy",
        "A3CPolicy",
        "continuous CNN",
        "continuous MLP",
        "ReLU MLP",
        "several choices CNN",
        "several choices MLP",
        "own",
    ],
)
@pytest.mark.parametrize("advantages", [{}, {"gae_lambda": 0.8, "normalize_advantage": True}], ids=["plain", "GAE"])
@pytest.mark.cases(check=12)
def test_the_gradient_of_acting_is_that_of_the_written_loss(name, count, advantages):
    policy, observations, actions = policy_named(name)
    policy = policy.double()
    settings = Settings(n_steps=5, ent_coef=0.03, vf_coef=0.7, gamma=0.9, **advantages)
    played = Scripted(count, observations, actions, 5, begins_late=count > 1)
    loss, *losses = worker_of(policy, played, settings).gradient()
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.parameters()]
    parts = written_loss(policy, played, settings)
    total = parts[0] + 0.7 * parts[1] - 0.03 * parts[2]
    wanted = torch.autograd.grad(total, list(policy.parameters()), allow_unused=True)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if theirs is None else theirs, rtol=1e-6, atol=1e-9)
    for ours, theirs in zip((*losses, loss), (*parts, total), strict=True):
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["CnnPolicy", "A3CPolicy"])
def test_losses_in_single_precision(name):
    policy, observations, actions = policy_named(name)
    settings = Settings(n_steps=5)
    played = Scripted(3, observations, actions, 5)
    _, *losses = worker_of(policy, played, settings).gradient()
    for ours, theirs in zip(losses, written_loss(policy, played, settings), strict=True):
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-5)


def test_known_layers_go_back_all_at_once_and_others_through_their_graph():
    for name, kind in (("CnnPolicy", LayerPasses), ("A3CPolicy", LayerPasses), ("own", GraphPasses)):
        assert type(passes_of(policy_named(name)[0])) is kind
    strange = policy_named("A3CPolicy")[0]
    strange.trunk[1] = nn.SiLU()
    assert type(passes_of(strange)) is GraphPasses


def test_a_layer_that_changed_its_mind_is_still_right():
    """Tanh in place of ReLU, and layers without bias."""
    policy, observations, actions = policy_named("A3CPolicy")
    policy.trunk[0] = nn.Conv2d(2, 16, 8, 4, bias=False)
    policy.trunk[1] = nn.Tanh()
    policy.trunk[5] = nn.Linear(policy.trunk[5].in_features, 256, bias=False)
    policy = policy.double()
    assert type(passes_of(policy)) is LayerPasses
    played, settings = Scripted(2, observations, actions, 5), Settings(ent_coef=0.01, vf_coef=0.5)
    worker_of(policy, played, settings).gradient()
    found = [p.grad.clone() for p in policy.parameters()]
    parts = written_loss(policy, played, settings)
    wanted = torch.autograd.grad(parts[0] + 0.5 * parts[1] - 0.01 * parts[2], list(policy.parameters()))
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("largest", [1e-3, 1e3])
def test_an_update_is_clipped_rmsprop_on_the_shared_vector(largest):
    policy, observations, actions = policy_named("continuous MLP")
    policy = policy.double()
    settings = Settings(
        max_grad_norm=largest,
        learning_rate=0.02,
        period=1,
        ent_coef=0.01,
        vf_coef=0.5,
        rms_decay=0.9,
        rms_eps=1e-5,
    )
    played = Scripted(2, observations, actions, 5)
    shared = Shared.of(policy, 1)
    before = [p.detach().numpy().copy() for p in policy.parameters()]
    Worker(policy, played, shared, settings, number=0, seed=0).train(300, 1000)
    parts = written_loss(policy, played, settings)
    gradients = torch.autograd.grad(parts[0] + 0.5 * parts[1] - 0.01 * parts[2], list(policy.parameters()))
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
    shared.read(list(policy.parameters()))
    for p, x, g in zip(policy.parameters(), before, gradients, strict=True):
        g = g.numpy() * min(1.0, largest / norm)
        wanted = x - 0.02 * 0.7 * g / np.sqrt(0.9 + 0.1 * g**2 + 1e-5)
        np.testing.assert_allclose(p.detach().numpy(), wanted, rtol=1e-6, atol=1e-9)
    assert shared.steps.tolist() == [10]
    assert shared.updates.tolist() == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_pass_takes_the_steps_of_rmsprop(dtype):
    policy = policy_named("own")[0].to(dtype)
    twin = policy_named("own")[0].to(dtype)
    settings, shared = Settings(max_grad_norm=1e9, rms_decay=0.95, rms_eps=1e-3), Shared.of(policy, 1)
    optimizer = RMSpropTF(twin.parameters(), decay=0.95, eps=1e-3)
    for rate in (0.1, 0.01, 0.0):
        # Also in another order in memory, as convolutions have theirs, and for some parameters none.
        gradients = [torch.randn(p.shape[::-1], dtype=dtype).T if p.ndim > 1 else None for p in twin.parameters()]
        for p, gradient in zip(twin.parameters(), gradients, strict=True):
            p.grad = gradient
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        write(shared, gradients, settings, rate)
    shared.read(list(policy.parameters()))
    near = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    for ours, theirs in zip(policy.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, **near)


def engine_of(threads, *, seed=0, source=Sides, envs=2, **settings):
    pytest.importorskip("gymnasium")
    from flockstep.rl.environments.copies import InProcess

    torch.manual_seed(1)
    policy = Glance()
    numbers = Settings(threads=threads, envs_per_thread=envs, **{"period": 20, "learning_rate": 7e-4, **settings})
    return policy, TorchEngine(policy, partial(InProcess, source, envs), numbers, seed=seed)


@pytest.mark.slow
def test_one_worker_depends_on_the_seed_alone():
    found = []
    for seed in (0, 0, 1):
        policy, engine = engine_of(1, seed=seed)
        assert engine.train(since=0, until=205, tell=lambda tally: True) == 210
        found.append(vector(policy))
        engine.close()
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.slow
def test_trainings_go_on_where_the_last_one_was():
    policy, engine = engine_of(1)
    rates, threads = [], torch.get_num_threads()
    engine.train(since=0, until=100, tell=lambda tally: rates.append(tally.learning_rate) or True)
    reached = engine.train(since=100, until=1000, tell=lambda tally: rates.append(tally.learning_rate) or False)
    assert reached == 300
    assert rates == pytest.approx([7e-4 * (1 - 90 / 100), 7e-4 * (1 - 290 / 1000)])
    assert torch.get_num_threads() == threads
    other_policy, other = engine_of(1)
    other_policy.load_state_dict(policy.state_dict())
    other.restore(engine.state())
    other.train(since=300, until=310, tell=lambda tally: True)
    assert not torch.equal(vector(policy), vector(other_policy))
    with pytest.raises(ValueError, match="a policy of 3 numbers"):
        other.restore({"square_avg": torch.ones(3)})
    for one in (engine, other):
        one.close()
        one.close()


def test_tallies_tell_episodes_and_means():
    _, engine = engine_of(1, envs=3, period=2)
    tallies = []
    engine.train(since=0, until=60, tell=lambda tally: tallies.append(tally) or True)
    engine.close()
    assert [tally.timesteps for tally in tallies] == [30, 60]
    assert [tally.lengths for tally in tallies] == [[10] * 3, [10] * 3]
    assert all(0 <= score <= 10 for tally in tallies for score in tally.returns)
    assert all(0.5 < tally.entropy <= math.log(2) + 1e-6 for tally in tallies)


def test_actions_are_predicted():
    policy, engine = engine_of(1)
    frames = np.random.default_rng(0).integers(0, 256, (50, 12, 12, 1), np.uint8)
    best = engine.predict(frames, deterministic=True)
    with torch.no_grad():
        assert (best == policy(torch.from_numpy(frames))[0].argmax(1).numpy()).all()
    drawn = np.concatenate([engine.predict(frames, deterministic=False) for _ in range(20)])
    assert set(drawn) == {0, 1}


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ValueError, match="running statistics"):
        TorchEngine(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), lambda: None, Settings())
    policy, engine = engine_of(1)
    policy.critic = nn.Linear(16, 3)
    policy.forward = lambda frames: (torch.zeros(len(frames), 2), torch.zeros(len(frames), 3))
    with pytest.raises(ValueError, match="one value for each of 2 observations"):
        engine.predict(np.zeros((2, 12, 12, 1), np.uint8), deterministic=True)


class Mad(Sides):
    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, math.inf, *rest


def test_a_loss_that_is_no_number_is_told_and_not_written():
    policy, engine = engine_of(1, source=Mad)
    before = vector(policy)
    with pytest.raises(Diverged, match="the loss of worker 0 is"):
        engine.train(since=0, until=100, tell=lambda tally: True)
    engine.close()
    assert torch.equal(vector(policy), before)


@pytest.mark.slow
def test_ctrl_c_leaves_the_last_update():
    policy, engine = engine_of(1)
    seen = []

    def tell(tally):
        seen.append(vector(policy))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.train(since=0, until=10_000, tell=tell)
    assert torch.equal(vector(policy), seen[0])
    assert engine.train(since=200, until=210, tell=lambda tally: True) == 210
    engine.close()


@pytest.mark.slow
def test_two_processes_write_one_policy_and_learn():
    # What is seen next has nothing to do with what was done.
    policy, engine = engine_of(2, envs=4, learning_rate=lambda remaining: 3e-3, gamma=0.0, ent_coef=0.01)
    scores, reached = until_it_knows_sides(engine)
    assert np.mean(scores[:20]) < 8
    assert np.mean(scores[-100:]) >= 9.5
    assert min(engine.updates) > 0
    assert sum(engine.updates) * 20 == reached
    before = engine.updates
    # The same processes take further orders, and both are needed for this one.
    engine.train(since=0, until=10**9, tell=lambda tally: min(np.subtract(engine.updates, before)) == 0)
    frozen, calls = vector(policy), []
    engine.train(since=0, until=10**9, tell=lambda tally: bool(calls.append(tally)))
    assert len(calls) == 1
    assert not torch.equal(vector(policy), frozen)
    frozen = vector(policy)
    engine.close()
    assert torch.equal(vector(policy), frozen)
    frames = np.stack([Sides().reset(seed=seed)[0] for seed in range(50)])
    sides = (frames[:, :, 6:].mean((1, 2, 3)) > frames[:, :, :6].mean((1, 2, 3))).astype(int)
    assert (engine.predict(frames, deterministic=True) == sides).mean() > 0.9


class Dies(Sides):
    def step(self, action):
        import os

        os._exit(3)


@pytest.mark.slow
def test_what_happens_to_a_worker_is_raised():
    from multiprocessing import active_children

    # Functions without a name that another process could look up travel, too.
    policy, engine = engine_of(2, source=lambda: Sides(fails_after=30), learning_rate=lambda remaining: 1e-3)
    before = vector(policy)
    with pytest.raises(NodeFailed, match=r"worker \d of 2 raised ValueError: the pixels are gone") as caught:
        engine.train(since=0, until=10_000, tell=lambda tally: True)
    assert "in step" in caught.value.__notes__[0]
    assert not torch.equal(vector(policy), before)
    assert not active_children()
    _, engine = engine_of(2, source=Dies)
    with pytest.raises(NodeFailed, match=r"worker \d of 2 ended with exit code 3"):
        engine.train(since=0, until=10_000, tell=lambda tally: True)
    assert not active_children()


class DiesOnce(Sides):
    """The first of all copies that is stepped is killed, and its worker with it."""

    def __init__(self, mark):
        super().__init__()
        self._mark = mark

    def step(self, action):
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().step(action)
        return os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 3])
def test_others_take_the_part_of_a_worker_that_is_killed(threads, tmp_path, caplog):
    policy, engine = engine_of(threads, source=partial(DiesOnce, tmp_path / "mark"), envs=3)
    before, tallies = vector(policy), []
    reached = engine.train(since=0, until=205, tell=lambda tally: bool(tallies.append(tally)) or True)
    # Updates are of 15 steps: 14 of them are needed, and whoever was at one then has ended it.
    assert 210 <= reached <= 210 + 15 * (threads - 2)
    assert tallies[-1].timesteps == reached
    dead = engine.updates.index(0)
    assert [record.getMessage() for record in caplog.records] == [
        f"worker {dead} of {threads} was killed by SIGKILL; the others go on"
    ]
    assert vector(policy).isfinite().all()
    assert not torch.equal(vector(policy), before)
    # They are there for further orders, and nobody is mourned twice.
    assert engine.train(since=0, until=100, tell=lambda tally: True) >= 100
    assert engine.updates[dead] == 0
    assert len(caplog.records) == 1
    engine.close()


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_trains_and_then_the_last_one(caplog):
    from multiprocessing import active_children

    policy, engine = engine_of(2)
    killed = []

    def kill_one_after_the_other(tally):
        # The second one when it is known that the first is gone.
        if len(killed) == len(caplog.records):
            killed.append(min(active_children(), key=lambda child: child.name))
            os.kill(killed[-1].pid, signal.SIGKILL)
        return True

    with pytest.raises(NodeFailed, match="worker 1 of 2 was killed by SIGKILL") as caught:
        engine.train(since=0, until=10**9, tell=kill_one_after_the_other)
    assert caught.value.rank == 1
    assert [record.getMessage() for record in caplog.records] == [
        "worker 0 of 2 was killed by SIGKILL; the others go on"
    ]
    assert vector(policy).isfinite().all()
    assert not active_children()
    # New ones are started when they are next needed.
    assert engine.train(since=0, until=100, tell=lambda tally: True) >= 100
    engine.close()


UNGUARDED = """
import sys
sys.path.insert(0, sys.argv[1])
from sides import Glance, Sides
from flockstep.rl import HSA2C

HSA2C(Glance(), Sides, threads=2, envs_per_thread=2, seed=0).learn(100)
"""


@pytest.mark.thorough
def test_a_script_without_a_guard_is_told_what_to_do(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, str(script), str(Path(__file__).parent)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    # Of this process alone, and of nothing that went before.
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.strip().splitlines()[-2:] == [
        "flockstep.errors.NodeFailed: NodeFailed: worker 0 of 2 imports the script that started it, which starts "
        "everything again as it is imported",
        '  put what the script does under if __name__ == "__main__":',
    ]


@pytest.mark.slow
def test_ctrl_c_stops_processes_between_updates_and_they_go_on_later():
    _, engine = engine_of(3)

    def interrupt(tally):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.train(since=0, until=10**9, tell=interrupt)
    done = engine.updates
    assert sum(done) > 0
    assert engine.train(since=0, until=300, tell=lambda tally: True) >= 300
    assert sum(engine.updates) > sum(done)
    engine.close()


PARENT = """
import sys
from multiprocessing import active_children
sys.path.insert(0, sys.argv[1])
from test_nets import engine_of

if __name__ == "__main__":
    _, engine = engine_of(2)
    told = []

    def tell(tally):
        if not told:
            told.append(print(*(child.pid for child in active_children()), flush=True))
        return True

    engine.train(since=0, until=10**9, tell=tell)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux, to wait for processes that are not our own")
def test_processes_end_with_whoever_started_them(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    here = str(Path(__file__).parent)
    with warm.Popen([script, here], stdout=subprocess.PIPE) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        handles = [os.pidfd_open(pid) for pid in pids]
        parent.kill()
    assert len(handles) == 2
    waiting = set(handles)
    while waiting:
        ready, _, _ = select.select(waiting, [], [], 30)
        assert ready, "a worker lives on"
        waiting -= set(ready)
    for handle in handles:
        os.close(handle)
