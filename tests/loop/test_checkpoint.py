"""Checkpoints: what was interrupted goes on as if it had not been."""

import random
import warnings
from functools import partial

import loops
import numpy as np
import pytest
import torch
from loops import assert_same, weights
from torch import nn

import flockstep as fs
from flockstep.backends.loop.checkpoint import complete

STEPS = 17
STRATEGIES = {
    "LocalSGD": fs.LocalSGD(period=4),
    "CELGC": fs.CELGC(period=4, gamma=0.05),
    "CELGC by default": fs.CELGC(period=4),
    "DataParallel": fs.DataParallel(average=fs.averages.Coded(codec=fs.codecs.Cast(dtype="bf16"))),
    "Episode": fs.Episode(period=4, gamma=0.05),
    "Episode by default": fs.Episode(period=4),
    "EpisodePlus": fs.EpisodePlus(period=4, gamma=0.05, sampled=2),
    "SClipEF": fs.SClipEF(),
    "SClipEFNetwork": fs.SClipEFNetwork(),
    "GTNSGDm": fs.GTNSGDm(topology=fs.topologies.Ring()),
}


class Interrupted(RuntimeError):
    pass


def loop(strategy, folder, *, stop_at=None, every=3, make_optimizer=None):
    """A loop with dropout, momentum, a schedule and data drawn from three global generators."""

    def body():
        torch.manual_seed(10 + fs.rank())
        np.random.seed(20 + fs.rank())
        random.seed(30 + fs.rank())
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1))
        optimizer = (make_optimizer or (lambda m: torch.optim.AdamW(m.parameters(), lr=0.01)))(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, strategy, resume=folder, save_every=every, stateful=[schedule]) as node:
            calls = 0
            while node.step_count < STEPS:
                if calls == stop_at:
                    raise Interrupted
                calls += 1
                rows = [*torch.randint(48, (8,)).tolist(), int(np.random.randint(48)), random.randrange(48)]
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
                optimizer.step()
                schedule.step()
        return weights(model), optimizer.param_groups[0]["lr"]

    return body


def plain_end(strategy, tmp_path, nodes=3, **options):
    return fs.simulate(loop(strategy, tmp_path / "whole", **options), nodes=nodes).results


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.cases(check=2, test=2)
def test_resuming_equals_no_interruption_bit_for_bit(name, tmp_path):
    strategy = STRATEGIES[name]
    whole = plain_end(strategy, tmp_path)
    with pytest.raises(fs.NodeFailed, match="Interrupted"):
        fs.simulate(loop(strategy, tmp_path / "cut", stop_at=11), nodes=3)
    again = fs.simulate(loop(strategy, tmp_path / "cut"), nodes=3).results
    for rank in range(3):
        assert_same(whole[rank][0], again[rank][0])
        assert whole[rank][1] == again[rank][1]


@pytest.mark.slow
def test_resuming_on_processes_bit_for_bit(tmp_path):
    strategy = STRATEGIES["CELGC"]
    whole = fs.launch(loop(strategy, tmp_path / "whole"), nodes=2).results
    with pytest.raises(fs.NodeFailed, match="Interrupted"):
        fs.launch(loop(strategy, tmp_path / "cut", stop_at=11), nodes=2)
    again = fs.launch(loop(strategy, tmp_path / "cut"), nodes=2).results
    for rank in range(2):
        assert_same(whole[rank][0], again[rank][0])


@pytest.mark.slow
def test_without_a_checkpoint_training_starts_anew(tmp_path):
    fresh = fs.simulate(loop(STRATEGIES["LocalSGD"], tmp_path / "nothing here yet"), nodes=2).results
    assert_same(fresh[0][0], plain_end(STRATEGIES["LocalSGD"], tmp_path, nodes=2)[0][0])


@pytest.mark.slow
def test_a_checkpoint_that_lacks_a_node_is_never_taken(tmp_path):
    folder = tmp_path / "cut"
    with pytest.raises(fs.NodeFailed):
        fs.simulate(loop(STRATEGIES["LocalSGD"], folder, stop_at=11), nodes=3)
    newest = complete(folder)[-1]
    (folder / f"step-{newest:08d}" / "node-0002.safetensors").unlink()
    assert newest not in complete(folder)
    again = fs.simulate(loop(STRATEGIES["LocalSGD"], folder), nodes=3).results
    assert_same(again[0][0], plain_end(STRATEGIES["LocalSGD"], tmp_path)[0][0])


def test_half_a_file_does_not_bear_the_name_of_a_whole_one(tmp_path, monkeypatch):
    from flockstep.backends.loop import checkpoint

    def torn(tensors, path, metadata):
        path.write_bytes(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint, "save_file", torn)
    model = loops.plain_model()
    with pytest.raises(OSError, match="no space left"), fs.join(model, loops.sgd(model), STRATEGIES["CELGC"]) as node:
        node.save(tmp_path)
    assert complete(tmp_path) == []
    assert list(tmp_path.rglob("*.safetensors")) == []


@pytest.mark.slow
def test_only_the_newest_two_are_kept(tmp_path):
    fs.simulate(loop(STRATEGIES["LocalSGD"], tmp_path), nodes=2)
    assert complete(tmp_path) == [12, 15]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000012", "step-00000015"]


@pytest.mark.slow
def test_one_that_another_node_forgets_while_it_is_looked_at_is_passed_over(tmp_path, monkeypatch):
    from flockstep.backends.loop import checkpoint

    fs.simulate(loop(STRATEGIES["LocalSGD"], tmp_path), nodes=2)
    read = checkpoint._read_plain

    def vanishing(path):
        if path.parent.name == "step-00000012":
            path.unlink()
        return read(path)

    monkeypatch.setattr(checkpoint, "_read_plain", vanishing)
    assert complete(tmp_path) == [15]


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_fewer_or_more_nodes_start_from_the_average(nodes, tmp_path):
    with pytest.raises(fs.NodeFailed):
        fs.simulate(loop(STRATEGIES["LocalSGD"], tmp_path, stop_at=11), nodes=3)
    step = complete(tmp_path)[-1]
    saved = [torch_load(tmp_path / f"step-{step:08d}" / f"node-{rank:04d}.safetensors") for rank in range(3)]
    seen = []

    def body():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
        with fs.join(model, optimizer, STRATEGIES["LocalSGD"], resume=tmp_path, stateful=[schedule]) as node:
            seen.append(node.params.clone())
            return node.step_count

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = fs.simulate(body, nodes=nodes)
    assert set(trace.results.values()) == {step}
    assert any("all start from the average model" in str(warning.message) for warning in caught)
    for model in seen:
        torch.testing.assert_close(model, torch.stack(saved).mean(0))


def torch_load(path):
    from safetensors.torch import load_file

    return load_file(path)["model"]


def test_saving_by_hand_and_what_cannot_be_saved(tmp_path):
    model = loops.plain_model()
    with fs.join(model, loops.sgd(model), STRATEGIES["CELGC"]) as node:
        folder = node.save(tmp_path)
    assert folder.name == "step-00000000"
    assert complete(tmp_path) == [0]

    class Odd:
        def state_dict(self):
            return {"thing": object()}

    optimizer = loops.sgd(model)
    with (
        pytest.raises(TypeError, match="a checkpoint cannot hold stateful/0/thing: object is neither"),
        fs.join(model, optimizer, STRATEGIES["CELGC"], stateful=[Odd()]) as node,
    ):
        node.save(tmp_path)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "RMSprop", "Adagrad", "NAdam"])
@pytest.mark.slow
def test_every_optimizers_state_survives(optimizer, tmp_path):
    make = partial(getattr(torch.optim, optimizer), lr=0.01)
    options = {"make_optimizer": lambda model: make(model.parameters())}
    whole = plain_end(STRATEGIES["LocalSGD"], tmp_path, nodes=2, **options)
    with pytest.raises(fs.NodeFailed):
        fs.simulate(loop(STRATEGIES["LocalSGD"], tmp_path / "cut", stop_at=11, **options), nodes=2)
    again = fs.simulate(loop(STRATEGIES["LocalSGD"], tmp_path / "cut", **options), nodes=2).results
    assert_same(whole[1][0], again[1][0])
