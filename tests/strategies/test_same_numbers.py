"""Strategies give the numbers they gave: models, losses, seconds, bytes and counts of short runs, recorded once.

For whoever rewrites a strategy without meaning to change it. ``same_numbers.json`` beside this file has for every run a
hash of all that came out, and a few numbers. The hash is held to the bit on the kind of processor, and with the torch
and NumPy, it was recorded with: others add up vectors in another order. Elsewhere the numbers are held to ten digits
(topics, which are in single precision, to three), and what is counted exactly.

A strategy that is meant to change is recorded anew: ``python tests/strategies/test_same_numbers.py``, which says what
became different.
"""

import hashlib
import importlib.util
import json
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import flockstep as fs
from flockstep.workloads.convex import Quadratics

RECORD = Path(__file__).with_name("same_numbers.json")
STEPS, PERIOD = 23, 4
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.5)
PLAIN = partial(torch.optim.SGD, lr=0.1)
HARDWARE = {
    "network": fs.Network(bandwidth="200 kbit/s", latency="7 ms"),
    "compute": fs.Compute(step="10 ms", spread=0.4, stragglers={0: 2.5}),
}
EIGHT = fs.codecs.Modular(bits=8)
# These runs are short, and some are pulled apart on purpose.
UNHEARD = ("ignore:DPSGD's analysis", "ignore:HPSGD. merges swing", "ignore:the nodes drift apart")
pytestmark = [pytest.mark.filterwarnings(text) for text in UNHEARD]

STRATEGIES = {
    "DataParallel": fs.DataParallel(clip=fs.clips.ClipStep(gamma=0.3)),
    "LocalSGD": fs.LocalSGD(period=PERIOD),
    "LocalSGD, clipped": fs.LocalSGD(period=PERIOD, clip=fs.clips.ClipNorm(max_norm=1.0)),
    "LocalSGD, bf16": fs.LocalSGD(period=PERIOD, average=fs.averages.Coded(codec=fs.codecs.Cast())),
    "CELGC": fs.CELGC(period=PERIOD),
    "CELGC, gamma": fs.CELGC(period=PERIOD, gamma=0.1),
    "CELGCUpdate": fs.CELGCUpdate(period=PERIOD, gamma=0.1),
    "Episode": fs.Episode(period=PERIOD),
    "Episode, published": fs.Episode(period=PERIOD, gamma=0.1, published=True),
    "EpisodePlus": fs.EpisodePlus(period=PERIOD, sampled=2),
    "EpisodePlus, published": fs.EpisodePlus(period=PERIOD, gamma=0.1, sampled=1, published=True),
    "Swarm": fs.Swarm(period=2, codec=EIGHT),
    "Swarm, raw": fs.Swarm(period=3),
    "Swarm, by phase": fs.Swarm(period=2, geometric=True, merge_every_step=False, codec=EIGHT),
    "SwarmPull": fs.SwarmPull(period=2, codec=EIGHT),
    "SwarmPairs": fs.SwarmPairs(period=PERIOD, codec=EIGHT),
    "ADPSGD": fs.ADPSGD(),
    "HPSGD": fs.HPSGD(),
    "HPSGD, period": fs.HPSGD(period=PERIOD, outer_lr=0.8),
    "HPSGD, published": fs.HPSGD(min_period=2, pull=1),
    "CoCoD": fs.CoCoD(period=PERIOD),
    "OverlapLocalSGD": fs.OverlapLocalSGD(period=PERIOD),
    "OverlapLocalSGD, published": fs.OverlapLocalSGD(period=PERIOD, pull=0.6, anchor_momentum=0.7, published=True),
    "DiLoCo": fs.DiLoCo(period=2),
    "DiLoCo, AdamW": fs.DiLoCo(period=PERIOD, outer=partial(torch.optim.AdamW, lr=1e-2)),
    "EagerDiLoCo": fs.EagerDiLoCo(period=2),
    "EagerDiLoCo, published": fs.EagerDiLoCo(period=PERIOD, outer_lr=0.7, outer_momentum=0.9, published=True),
    "StreamingDiLoCo": fs.StreamingDiLoCo(period=6, fragments=3, delay=2),
    "StreamingDiLoCo, at once": fs.StreamingDiLoCo(period=6, fragments=2, delay=0),
    "StreamingDiLoCo, published": fs.StreamingDiLoCo(
        period=6, fragments=3, delay=2, alpha=0.5, outer_lr=0.4, outer_momentum=0.9
    ),
    "StreamingDiLoCo, coded": fs.StreamingDiLoCo(
        period=6, fragments=3, delay=5, average=fs.averages.Coded(codec=fs.codecs.Stochastic(bits=8))
    ),
    "Gossip": fs.Gossip(codec=EIGHT),
    "Gossip, overlap": fs.Gossip(overlap=True),
    "Choco": fs.Choco(codec=fs.codecs.Stochastic(bits=4)),
    "SGP": fs.SGP(),
    "SGP, overlap": fs.SGP(overlap=True),
    "NoLoCo": fs.NoLoCo(period=PERIOD, codec=EIGHT),
    "SClipEF": fs.SClipEF(),
    "SClipEFNetwork": fs.SClipEFNetwork(),
    "GTNSGDm": fs.GTNSGDm(topology=fs.topologies.Ring()),
    "DPSGD": fs.DPSGD(period=2),
    "DPSGD, in flight": fs.DPSGD(period=2, max_steps_in_flight=3, codec=fs.codecs.TopK(fraction=0.5)),
    "DPSGD, folds": fs.DPSGD(pushes_per_update=2, server_trains=False, damping=0.5),
    "DPSGD, gate": fs.DPSGD(max_staleness=1, max_steps_in_flight=2, server=1),
}
CREWS = {"DPSGD, threads": fs.DPSGD(threads=2, period=3), "DPSGD, sum": fs.DPSGD(threads=3, server_lr=0.3)}
# What mixes with neighbours goes by events as soon as there is a network.
STACKED = ("DataParallel", "LocalSGD", "LocalSGD, clipped", "CELGC", "CELGC, gamma", "SClipEF")
# In a loop every node takes steps.
NO_LOOPS = ("DPSGD, folds",)


def told(trace, *vectors):
    """What a run came to: a hash of all of it, what is counted, and some numbers."""
    numbers = [np.asarray(v, np.float64).ravel() for v in vectors]
    numbers += [np.array([[row.seconds, row.loss, row.bytes] for row in trace.rows]).ravel()]
    seconds = [[node.computing, node.waiting, node.talking, node.seconds] for node in trace.nodes]
    numbers += [np.array(seconds).ravel()]
    counted = [
        {"steps": n.steps, "skipped": n.skipped, "gradients": n.gradients, "sent": n.bytes_sent, **n.counts}
        for n in trace.nodes
    ]
    whole = b"".join(np.ascontiguousarray(v).tobytes() for v in numbers) + json.dumps(counted, sort_keys=True).encode()
    # Of a long vector a sum with weights that no two coordinates share.
    sums = [float(v @ np.cos(1.0 + np.arange(v.size))) for v in numbers]
    return {"sha256": hashlib.sha256(whole).hexdigest(), "sums": sums, "counted": counted}


def simulated(strategy, nodes, *, engine="events", optimizer=SGD, **options):
    trace = fs.simulate(
        strategy,
        Quadratics(dim=41, noise=0.5, dtype=torch.float64),
        nodes=nodes,
        steps=STEPS,
        optimizer=optimizer,
        seed=7,
        record_every=5,
        engine=engine,
        **HARDWARE,
        **options,
    )
    assert trace.engine == engine
    return told(trace, *(trace.models[rank] for rank in sorted(trace.models)))


def with_misfortune(strategy):
    """The same where a server, or whoever else is node 0, dies and comes back, and messages are lost."""
    faults = [fs.faults.Crash(node=0, at="120 ms", back_after="60 ms"), fs.faults.MessageLoss(share=0.2)]
    return simulated(strategy, 3, faults=faults, timeout="80 ms")


class Interrupted(RuntimeError):
    pass


def loop(strategy, folder, stop_at=None):
    """A loop of a user's own, with dropout and the statistics of batch norm, saved in the middle of periods."""

    def body():
        torch.manual_seed(10 + fs.rank())
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1)).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        x = torch.randn(48, 4, generator=torch.Generator().manual_seed(1000 + fs.rank())).double()
        with fs.join(model, optimizer, strategy, resume=folder, save_every=3) as node:
            began = node.step_count
            while node.step_count < 17:
                if node.step_count == stop_at:
                    raise Interrupted
                rows = torch.randint(48, (8,))
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x[rows]), x[rows].sum(1, keepdim=True))
                loss.backward()
                optimizer.step()
                node.log(loss.item())
        return began, np.concatenate([value.numpy().astype(float).ravel() for value in model.state_dict().values()])

    return body


def joined(strategy, nodes):
    """A loop that is stopped after 11 steps, and goes on from what all had saved in the middle of a period."""
    # Of nodes at very different steps, the fast would have thrown away what the slow one has saved.
    quick = fs.Network(bandwidth="10 Mbit/s", latency="0.5 ms")
    even = {"network": quick, "compute": fs.Compute(step="10 ms", spread=0.01), "start_skew": 0.0}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "kept"
        with pytest.raises(fs.NodeFailed, match="Interrupted"):
            fs.simulate(loop(strategy, folder, stop_at=11), nodes=nodes, seed=7, **even)
        trace = fs.simulate(loop(strategy, folder), nodes=nodes, seed=7, **HARDWARE)
    assert all(began > 0 for began, _ in trace.results.values())
    return told(trace, *(trace.results[rank][1] for rank in sorted(trace.results)))


def topics(nodes, **options):
    """DPSVI on the small corpus of its own tests."""
    from flockstep.lda import LDA
    from flockstep.lda.nodes.dpsvi import DPSVI
    from flockstep.lda.nodes.topic_workload import TopicDocuments

    place = Path(__file__).parents[1] / "lda" / "lda_corpora.py"
    spec = importlib.util.spec_from_file_location("lda_corpora", place)
    corpora = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(corpora)
    model = LDA(5, batch_size=8, learning_decay=0.7, learning_offset=2.0)
    trace = fs.simulate(
        DPSVI(**{key: options.pop(key) for key in list(options) if key not in ("faults", "timeout")}),
        TopicDocuments(corpora.drawn(120, 50, 5), model=model, seed=3),
        nodes=nodes,
        steps=STEPS,
        seed=7,
        record_every=5,
        network=fs.Network(latency="30 ms", bandwidth="1 Mbit/s"),
        compute=fs.Compute(step="20 ms", spread=0.3),
        **options,
    )
    return told(trace, *(trace.models[rank] for rank in sorted(trace.models)))


RUNS = {
    **{f"{name}, {n} nodes": partial(simulated, each, n) for name, each in STRATEGIES.items() for n in (2, 3)},
    **{
        f"{name}, {n} nodes, stacked": partial(simulated, STRATEGIES[name], n, engine="stacked")
        for name in STACKED
        for n in (2, 3)
    },
    **{f"{name}, crews": partial(simulated, each, 3, optimizer=PLAIN) for name, each in CREWS.items()},
    **{
        f"{name}, misfortune": partial(with_misfortune, STRATEGIES[name])
        for name in ("Swarm", "Swarm, raw", "SwarmPull", "ADPSGD", "DPSGD", "DPSGD, in flight", "DPSGD, folds")
    },
    **{f"{name}, joined": partial(joined, each, 3) for name, each in STRATEGIES.items() if name not in NO_LOOPS},
}
TOPICS = {
    "DPSVI, 2 nodes": partial(topics, 2),
    "DPSVI, 3 nodes": partial(topics, 3, period=2, max_steps_in_flight=3),
    "DPSVI, waiting": partial(topics, 3, period=3, max_steps_in_flight=0, bits=32),
    "DPSVI, serving": partial(topics, 3, server=1, server_trains=False, bits=16),
    "DPSVI, server dies": partial(
        topics,
        3,
        period=2,
        max_steps_in_flight=2,
        faults=[fs.faults.Crash(node=0, at="400 ms", back_after="120 ms"), fs.faults.MessageLoss(share=0.1)],
        timeout="200 ms",
    ),
    "DPSVI, worker dies": partial(
        topics, 3, period=2, faults=[fs.faults.Crash(node=2, at="150 ms", back_after="120 ms")], timeout="200 ms"
    ),
    "DPSVI, abandoned": partial(
        topics, 3, patience=None, faults=[fs.faults.Crash(node=0, at="150 ms")], timeout="200 ms"
    ),
}


def here():
    """What decides in which order numbers are added up."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), sys.platform)
    return {"processor": processor, "torch": torch.__version__, "numpy": np.__version__}


def hold(name, found, digits, *, but=()):
    """As it was recorded; ``but`` are counts that follow the numbers, and are held on the same machine only."""
    record = json.loads(RECORD.read_text())
    expected = record["runs"][name]
    if record["recorded on"] == here():
        assert found == expected
    for ours, theirs in zip(found["counted"], expected["counted"], strict=True):
        assert {key: n for key, n in ours.items() if key not in but} == {
            key: n for key, n in theirs.items() if key not in but
        }
    assert found["sums"] == pytest.approx(expected["sums"], rel=10.0**-digits, abs=10.0**-digits)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.cases(check=12, test=50)
def test_the_numbers_are_those_that_were_recorded(name):
    hold(name, RUNS[name](), 10)


@pytest.mark.parametrize("name", TOPICS)
def test_and_so_are_topics(name):
    pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")
    # Small counts are sent by a coin: how many there are depends on the last bit.
    hold(name, TOPICS[name](), 3, but=("sent",))


def record():
    """Write down what all runs give now, and say which are not as they were."""
    before = json.loads(RECORD.read_text())["runs"] if RECORD.exists() else {}
    now = {name: run() for name, run in (RUNS | TOPICS).items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in now.items())
    RECORD.write_text(f'{{"recorded on": {json.dumps(here())}, "runs": {{\n{lines}\n}}}}\n')
    print("other than before:", [name for name, found in now.items() if before.get(name) != found] or "none")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for text in UNHEARD:
        warnings.filterwarnings(*text.split(":", 1))
    record()
