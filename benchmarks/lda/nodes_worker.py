"""One process of the comparison: learns topics alone, or as one of two nodes; ends with one line of JSON.

python -m benchmarks.lda.nodes_worker --alone ...
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from typing import Any

import torch
from threadpoolctl import threadpool_limits

import flockstep as fs
from benchmarks.lda import ours
from benchmarks.lda.newsgroups import Split, newsgroups
from benchmarks.slowlink.place import take_place
from flockstep.backends.real.drive import drive
from flockstep.backends.real.joined import process_fabrics, torchrun_store
from flockstep.backends.real.training import TrainingNode
from flockstep.budget import Budget
from flockstep.lda import LDA
from flockstep.lda.dpsvi import DPSVI
from flockstep.lda.progress import compile_loops
from flockstep.lda.workload import TopicDocuments

_TIMEOUT = 120.0


class Unwatched(TrainingNode):
    """Nobody looks at losses on the way: a look would take the link."""

    def record(self, step: int) -> None:
        """Nothing."""


def main() -> None:
    """Learn, and tell how long it took and how good it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alone", action="store_true", help="no other node, no exchange: the plain estimator")
    for name in ("topics", "batch", "passes", "local-steps", "ahead", "bits", "cores", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--objective", required=True)
    parser.add_argument("--documents", type=int, help="learn from so many only")
    options = parser.parse_args()
    rank = take_place(cores=options.cores)
    with threadpool_limits(1):
        split = newsgroups(options.documents)
        lengths = {"batch_size": options.batch, "max_iter": options.passes}
        made = ours.model(options.topics, options.seed, options.objective, 1, **lengths)
        compile_loops(shown=False)
        told = _alone(made, split) if options.alone else _node(made, split, options, rank)
    print(json.dumps(told))


def _alone(made: LDA, split: Split) -> dict[str, Any]:
    made.fit(split.train)
    return {
        "seconds": made.training_seconds_,
        "batches": made.n_batch_iter_ - 1,
        "documents": made.n_iter_ * split.train.shape[0],
        **_scores(split, made.components_),
    }


def _node(made: LDA, split: Split, options: argparse.Namespace, rank: int) -> dict[str, Any]:
    strategy = DPSVI(local_steps=options.local_steps, ahead=options.ahead, bits=options.bits)
    documents = TopicDocuments(split.train, model=made, held_out=split.validation, seed=options.seed)
    # The loops that write and read messages are compiled before the clock runs.
    fs.simulate(strategy, TopicDocuments(split.train[:64], model=LDA(3)), nodes=2, steps=4)
    store, _, size = torchrun_store()
    # As many batches as one process takes, by whoever is able: cores of one kind differ by a third from run to run.
    steps = options.passes * -(-split.train.shape[0] // options.batch)
    node = Unwatched(
        process_fabrics(store, rank, size, _TIMEOUT)(True),
        rank,
        size,
        workload=documents.shard(rank, size),
        # Never asked to step: a batch writes into the vector itself.
        optimizer=partial(torch.optim.SGD, lr=1.0),
        steps=Budget(steps=steps),
        record_every=steps,
        seed=options.seed,
        timeout=_TIMEOUT,
        one_sided=True,
    )
    _meet(store, size)
    began = time.monotonic()
    drive(strategy.run(node))
    # One clock for all processes of a machine. A worker's program ends when its last push is answered.
    ended = time.monotonic()
    node.finish()
    documents.fill(made, node.params)
    report = node.tally
    return {
        "began": began,
        "ended": ended,
        "batches": report.steps,
        "computing": report.computing,
        "sent": report.bytes_sent,
        "received": report.bytes_received,
        **(_scores(split, made.components_) if rank == strategy.server else {}),
    }


def _meet(store: Any, size: int) -> None:
    """Begin together, however long each took to load."""
    store.add("ready", 1)
    while store.add("ready", 0) < size:
        time.sleep(0.001)


def _scores(split: Split, components: Any) -> dict[str, float]:
    return {
        "validation": split.validation.of_components(components),
        "test": split.test.of_components(components),
    }


if __name__ == "__main__":
    main()
