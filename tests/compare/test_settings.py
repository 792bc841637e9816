import pytest
from comparisons import DEFAULTS, made

from flockstep.compare import settings
from flockstep.compare.cluster import Cluster, RealCluster
from flockstep.texts.optimizer_texts import OptimizerName


def written(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def test_the_built_in_set_has_the_six_and_works_for_any_number_of_nodes():
    for nodes in (1, 2, 7, 16):
        names = [entry.describe().partition("(")[0] for entry in made(nodes=nodes).entries]
        assert names == ["DataParallel", "CELGC", "Swarm", "DPSGD", "HPSGD", "DiLoCo"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "SGD(lr=0.1)"),
        ({"lr": 0.5}, "SGD(lr=0.5)"),
        ({"optimizer": "adamw"}, "AdamW(lr=0.01)"),
        ({"workload": "shakespeare(batch=2)"}, "AdamW(lr=0.04)"),
        ({"workload": "shakespeare", "lr": 0.5}, "AdamW(lr=0.5)"),
        ({"workload": "shakespeare", "optimizer": "sgd", "lr": 8.0}, "SGD(lr=8)"),
    ],
)
def test_all_step_alike_as_was_said_or_as_the_workload_needs(given, told):
    assert {entry.steps_with() for entry in made(**given).entries} == {told}


def test_a_plan_file_says_all_of_it(tmp_path):
    path = written(
        tmp_path,
        """
        workload = "shakespeare(batch=5)"
        seeds = [3, 5]
        steps = 7
        target = 0.4
        strategies = ["DataParallel", {strategy = "LocalSGD(period=2)", label = "mine", lr = 0.5, optimizer = "sgd"}]
        [cluster]
        nodes = 3
        step_time = "1 ms"
        straggler = "1:4x"
        crash = ["2@60s"]
        """,
    )
    said = settings.read_plan(path)
    found = settings.comparison({**DEFAULTS, **said}, set(said), "flockstep compare plan.toml")
    assert found.seeds == (3, 5)
    assert (found.steps, found.target, found.workload) == (7, 0.4, "shakespeare(batch=5)")
    assert found.labels == ["DataParallel", "mine"]
    assert [entry.steps_with() for entry in found.entries] == ["AdamW(lr=0.04)", "SGD(lr=0.5)"]
    assert found.cluster == Cluster(
        nodes=3,
        link="100 Mbit/s",
        latency="20 ms",
        step_time="1 ms",
        spread=0.0,
        straggler=("1:4x",),
        crash=("2@60s",),
    )
    record = found.record()
    assert record.cluster["stragglers"] == ["1:4x"]
    assert record.cluster["faults"] == ["crash 2@60s"]
    assert (record.samples_per_step, record.samples) == (3 * 5, "samples")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("wrokload = 'logistic'", r"no key wrokload \(did you mean workload\?\)"),
        ("[cluster]\nlatncy = '1 ms'", r"no key cluster.latncy \(did you mean cluster.latency\?\)"),
        ("[[strategies]]\nstrategy = 'DataParallel'\nlearning = 1", "no key strategies.learning; there are"),
        ("workload = ", "plan.toml: "),
        ("cluster = 3", "cluster is a table"),
        ("workload = 3", "workload is a text in quotes, got 3"),
        ("[cluster]\nstraggler = [3]", "straggler is a list of texts"),
    ],
)
def test_a_wrong_plan_file_is_told_in_a_sentence(tmp_path, text, told):
    with pytest.raises((ValueError, TypeError), match=told):
        settings.read_plan(written(tmp_path, text))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"strategies": ["DataParalel"]}, "did you mean DataParallel"),
        ({"strategies": ["DataParallel", "DataParallel"]}, "DataParallel.* is named twice"),
        ({"strategies": [{"label": "x"}]}, "a table with the key strategy"),
        ({"strategies": "DataParallel"}, "must be a list"),
        ({"strategies": [{"strategy": "DataParallel", "optimizer": "adam"}]}, "'adamw', got 'adam'"),
        ({"seeds": 0}, "compare.seeds must be at least 1"),
        ({"seeds": [1, 1]}, "must be different numbers"),
        ({"steps": 0}, "compare.steps must be at least 1"),
        ({"lr": -1.0}, "compare.lr must be positive"),
        ({"straggler": ["4:2x"]}, "names node 4, but there are nodes 0 to 3"),
        ({"crash": ["9@1s"]}, "names node 9"),
        ({"workload": "quadratic"}, "did you mean quadratics"),
        ({"link": "100"}, "100 Mbit/s"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(wrong, told):
    with pytest.raises((ValueError, TypeError), match=told):
        made(**wrong).record()


def test_labels_are_as_short_as_tells_strategies_apart():
    tables = [{"strategy": "LocalSGD(period=2)", "lr": lr} for lr in (0.1, 0.2)]
    found = made(strategies=["DataParallel", "LocalSGD(period=4)", *tables]).labels
    told = [f"LocalSGD(period=2) with SGD(lr={lr})" for lr in (0.1, 0.2)]
    assert found == ["DataParallel", "LocalSGD(period=4)", *told]


def test_momentum_is_told_with_the_optimizer():
    entry = made(strategies=["DataParallel"], optimizer="momentum", lr=2.0).entries[0]
    assert entry.optimizer is OptimizerName.momentum
    assert entry.steps_with() == "SGD(lr=2, momentum=0.9)"


def test_a_real_cluster_has_two_nodes_and_this_machines_links_unless_told():
    assert made(real=True).cluster == RealCluster(nodes=2, link=None)
    assert "this machine's own links" in made(real=True).cluster.describe()
    assert made(real=True, nodes=3, link="50 Mbit/s").cluster == RealCluster(nodes=3, link="50 Mbit/s")
    assert made(real=True).record().cluster["links"] == "this machine's own links"


@pytest.mark.parametrize(
    "given",
    [{"latency": "1 ms"}, {"straggler": ["1:2x"]}, {"crash": ["1@3s"]}, {"spread": 0.5}, {"step_time": "1 ms"}],
)
def test_what_only_virtual_nodes_can_have_is_refused_for_real_ones(given):
    name = next(iter(given)).replace("_", "-")
    with pytest.raises(ValueError, match=f"--{name} can be declared for virtual nodes only"):
        made(real=True, **given)
