"""What cannot be trained right is refused at the door, or at the step where it shows; with the real packages."""

import sys

import loops
import pytest
import torch
import torch.distributed as dist
from loops import assert_same, weights
from torch import nn

import flockstep as fs

FAR = fs.LocalSGD(period=10**6)


@pytest.fixture
def process_group():
    """A world of one, as torchrun with one process has it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def refused(model, *, optimizer=None, strategy=FAR, kind=(ValueError, TypeError)):
    with pytest.raises(kind) as caught, fs.join(model, optimizer or loops.sgd(model), strategy):
        pass
    return str(caught.value)


def test_a_model_in_ddp(process_group):
    wrapped = nn.parallel.DistributedDataParallel(loops.plain_model())
    assert "join the module inside (model.module), and do not wrap it" in refused(wrapped)
    inside = nn.Sequential(wrapped, nn.Linear(1, 1))
    assert "join.model's 0 is wrapped in DistributedDataParallel" in refused(inside)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.cases(check=1)
def test_a_trainer_that_wraps_the_model_behind_our_back(process_group, compiled):
    model = loops.plain_model()
    x, y = loops.data()
    with fs.join(model, loops.sgd(model), FAR):
        wrapped = nn.parallel.DistributedDataParallel(torch.compile(model, backend="eager") if compiled else model)
        with pytest.raises(RuntimeError, match="this model runs inside DistributedDataParallel"):
            wrapped(x)
        # Without the wrapper it runs.
        nn.functional.mse_loss(model(x), y).backward()
    # And afterwards anybody may do so.
    nn.parallel.DistributedDataParallel(model)(x)


def test_a_model_that_is_sharded_among_this_process_alone_trains_as_the_whole_one(process_group):
    from torch.distributed.fsdp import fully_shard

    model, same = loops.plain_model(), loops.plain_model()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))  # type: ignore[attr-defined]
    for one in (model, same):
        optimizer = loops.sgd(one)
        with fs.join(one, optimizer, fs.CELGC(period=2, gamma=0.05)):
            loops.iterate(range(5), one, optimizer, None, None)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.full_tensor(), same.state_dict()[name]), name


def test_a_mesh_of_two_dimensions(process_group):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "shards"))  # type: ignore[attr-defined]
    model = loops.plain_model()
    with pytest.raises(ValueError, match="must be a mesh of one dimension, got one of 2"):
        fs.join(model, loops.sgd(model), FAR, island=mesh).__enter__()
    fully_shard(model, mesh=mesh)
    with pytest.raises(NotImplementedError, match="sharded over a mesh of 2 dimensions"):
        fs.join(model, loops.sgd(model), FAR).__enter__()


@pytest.mark.parametrize(
    ("strategy", "joining", "sentence"),
    [
        (fs.Swarm(), {}, "Swarm() is one-sided: nodes come in and meet one by one"),
        (fs.DataParallel(average=fs.averages.PowerSGD(rank=1)), {}, "PowerSGD needs whole matrices"),
        (FAR, {"elastic": True}, "islands are not elastic yet"),
        (FAR, {"budget": fs.Budget(steps=10)}, "islands have no budget yet"),
    ],
)
def test_what_islands_cannot_do_yet(process_group, strategy, joining, sentence):
    model = loops.plain_model()
    with (
        pytest.raises(NotImplementedError) as caught,
        fs.join(model, loops.sgd(model), strategy, island=dist.group.WORLD, **joining),
    ):
        pass
    assert sentence in str(caught.value)


def test_an_island_that_is_none(process_group):
    model = loops.plain_model()
    with pytest.raises(
        TypeError, match=r"join\.island must be a DeviceMesh of one dimension or a process group, got 'a'"
    ):
        fs.join(model, loops.sgd(model), FAR, island="a").__enter__()


def test_a_scaler_in_an_island(process_group):
    model = loops.plain_model()
    optimizer = loops.sgd(model)
    with fs.join(model, optimizer, FAR, island=dist.group.WORLD):
        nn.functional.mse_loss(model(loops.data()[0]), loops.data()[1]).backward()
        with pytest.raises(NotImplementedError, match="a GradScaler in an island is not supported"):
            torch.amp.GradScaler("cpu").step(optimizer)


def test_a_model_without_numbers():
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    assert "weight lies on the meta device" in refused(model)


def test_memory_that_a_parameter_shares_with_a_buffer():
    model = loops.plain_model()
    model.register_buffer("window", model[0].weight.data[:2])
    assert "0.weight and window share memory without being one tensor" in refused(model)


def test_memory_that_only_constants_share_is_fine():
    model = loops.plain_model()
    mask = torch.ones(4, 4)
    model.register_buffer("whole", mask)
    model.register_buffer("top", mask[:2])
    model.register_buffer("wide", torch.zeros(1).expand(5))
    with fs.join(model, loops.sgd(model), FAR):
        pass
    assert model.top.data_ptr() == model.whole.data_ptr()


def test_parameters_side_by_side_in_one_memory_are_fine():
    """As cuDNN keeps those of an LSTM."""
    model = loops.plain_model()
    both = torch.randn(10)
    model[0].bias, model[2].bias = nn.Parameter(both[:6]), nn.Parameter(both[6:7])
    with fs.join(model, loops.sgd(model), FAR):
        pass


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda m: torch.optim.SGD(m[0].parameters(), lr=0.1), "does not hold parameter 2.weight and 1 more"),
        (lambda m: [], "got an empty list"),
        (lambda m: [loops.sgd(m), loops.sgd(m)], "optimizer 0 (SGD) and optimizer 1 (SGD) hold the same parameter"),
        (lambda m: [loops.sgd(m[0]), loops.sgd(m[2]), "adam"], "or a list of them, got 'adam'"),
        (lambda m: [loops.sgd(m[0])], "does not hold parameter 2.weight"),
    ],
)
def test_optimizers(make, sentence):
    model = loops.plain_model()
    with pytest.raises((ValueError, TypeError)) as caught, fs.join(model, make(model), FAR):
        pass
    assert sentence in str(caught.value)


def test_the_same_optimizer_twice():
    model = loops.plain_model()
    optimizer = loops.sgd(model)
    with pytest.raises(ValueError, match=r"holds optimizer 1 \(SGD\) twice"), fs.join(model, [optimizer] * 2, FAR):
        pass


def test_the_real_schedule_free_optimizer():
    schedulefree = pytest.importorskip("schedulefree")

    def body(strategy):
        model = loops.plain_model()
        optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.05)
        x, y = loops.data(fs.rank())
        optimizer.train()
        with fs.join(model, optimizer, strategy):
            for _ in range(4):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
            optimizer.eval()
            return weights(model)

    results = fs.simulate(lambda: body(fs.DataParallel()), nodes=2).results
    assert_same(results[0], results[1])
    with pytest.raises(fs.NodeFailed, match="keeps weights of its own for evaluation"):
        fs.simulate(lambda: body(fs.LocalSGD(period=2)), nodes=2)


@pytest.mark.slow
def test_the_real_eight_bit_optimizer_is_resumed_to_the_bit(tmp_path, monkeypatch):
    pytest.importorskip("torchao", reason="needs torchao")
    from torchao.optim import AdamW8bit

    # What it compiles is the same in Python, and compiling takes longer than all else here.
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)

    def made():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        return model, AdamW8bit(model.parameters(), lr=0.01)

    def trained(model, optimizer, steps, **joining):
        with fs.join(model, optimizer, fs.LocalSGD(period=2), **joining) as node:
            for k in range(node.step_count, steps):
                torch.manual_seed(k)
                optimizer.zero_grad()
                model(torch.randn(8, 64)).square().mean().backward()
                optimizer.step()
        return weights(model)

    whole = trained(*made(), 6)  # type: ignore[call-arg]
    trained(*made(), 3, resume=tmp_path, save_every=3)  # type: ignore[call-arg]
    assert_same(whole, trained(*made(), 6, resume=tmp_path, save_every=3))  # type: ignore[call-arg]


def test_an_eight_bit_checkpoint_without_the_package_says_so():
    from flockstep.backends.loop import serialization

    form = {"module": "no.such.package", "class": "State", "inner": [], "context": {}, "shape": [1], "stride": [1]}
    with pytest.raises(TypeError, match=r"holds a no\.such\.package\.State, which this program has not imported"):
        serialization.put_together({"wrapped": form}, {})
    # A name of something else is no way in, either.
    with pytest.raises(TypeError, match="has not imported"):
        serialization.put_together({"wrapped": {**form, "module": "os", "class": "system"}}, {})
    assert "os" in sys.modules


@pytest.mark.slow
def test_constants_stay_to_the_bit_whatever_the_codec():
    """Eight bits of every number travel, and masks and tables are the same as ever."""

    def body(strategy):
        torch.manual_seed(fs.rank())
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
        model.register_buffer("mask", torch.full((5, 5), torch.finfo(torch.float32).min).triu(1))
        model.register_buffer("angles", torch.linspace(0, 3, 999))
        model.register_buffer("causal", torch.full((5, 5), float("-inf")).triu(1))
        start = {name: model.get_buffer(name).clone() for name in ("mask", "angles", "causal")}
        optimizer = loops.sgd(model)
        x, y = loops.data(fs.rank())
        with fs.join(model, optimizer, strategy) as node:
            for _ in range(6):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
            average = node.average_model()
        for name, value in start.items():
            assert torch.equal(model.get_buffer(name), value), name
            assert torch.equal(average.get_buffer(name), value), name
        return weights(model)

    coded = fs.averages.Coded(codec=fs.codecs.Stochastic(bits=8))
    for strategy in (
        fs.Swarm(codec=fs.codecs.Modular(bits=8)),
        fs.LocalSGD(period=2, average=coded),
        fs.DiLoCo(period=2, average=coded),
        fs.Choco(codec=fs.codecs.Stochastic(bits=4)),
        fs.SwarmPairs(codec=fs.codecs.Modular(bits=8)),
    ):
        results = fs.simulate(lambda strategy=strategy: body(strategy), nodes=3).results
        assert all(torch.isfinite(results[0][name]).all() for name in ("0.weight", "1.running_var"))
