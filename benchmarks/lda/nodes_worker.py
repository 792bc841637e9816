"""One process of the comparison: learns topics alone and as one of two nodes, in turns; ends with one line of JSON.

python -m benchmarks.lda.nodes_worker --repeats 5 ...
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from threadpoolctl import threadpool_limits

import flockstep as fs
from benchmarks.lda import ours
from benchmarks.lda.newsgroups import newsgroups
from benchmarks.report import Progress
from benchmarks.slowlink.place import take_place
from flockstep.backends.real.drive import drive
from flockstep.backends.real.join.joined import process_fabrics, store_of
from flockstep.backends.real.launch.cluster_environment import find
from flockstep.backends.real.training import TrainingNode
from flockstep.budget import Budget
from flockstep.lda import LDA
from flockstep.lda.nodes.dpsvi import DPSVI
from flockstep.lda.nodes.topic_workload import TopicDocuments
from flockstep.lda.progress import compile_loops

_TIMEOUT = 120.0
Told = dict[str, Any]


class Unwatched(TrainingNode):
    """Nobody looks at losses on the way: a look would take the link."""

    def record(self, step: int) -> None:
        """Nothing."""


def main() -> None:
    """Learn, and tell how long it took and how good it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("topics", "batch", "passes", "period", "ahead", "bits", "cores", "repeats"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("delay-of-one", "delay-of-two"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--objective", required=True)
    parser.add_argument("--documents", type=int, help="learn from so many only")
    options = parser.parse_args()
    rank = take_place(cores=options.cores)
    with threadpool_limits(1):
        told = Turns(options, rank).all()
    print(json.dumps(told))


class Turns:
    """One after another in the same processes: what loading and compiling take is paid once."""

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        self._options, self._rank = options, rank
        self._split = newsgroups(options.documents)
        compile_loops(shown=False)
        self._strategy = DPSVI(period=options.period, max_steps_in_flight=options.ahead, bits=options.bits)
        # The loops that write and read messages are compiled before the clock runs.
        fs.simulate(self._strategy, TopicDocuments(self._split.train[:64], model=LDA(3)), nodes=2, steps=4)
        world = find()
        if world is None:
            raise ValueError("RANK and WORLD_SIZE are not set: benchmarks.lda.nodes starts this")
        self._store, self._size = store_of(world), world.size
        self._fabrics = process_fabrics(self._store, rank, self._size, _TIMEOUT)
        self._meetings = 0

    def all(self) -> dict[str, list[Told]]:
        """Of every seed, what each way took; which way comes first changes from seed to seed."""
        ways: dict[str, Callable[[int], Told]] = {"one": self._idle, "beside": self._alone, "two": self._node}
        told: dict[str, list[Told]] = {name: [] for name in ways}
        progress = Progress(len(ways) * self._options.repeats) if self._rank == 0 else None
        for seed in range(self._options.repeats):
            for name in (*ways,) if seed % 2 == 0 else (*reversed(ways),):
                if progress is not None:
                    progress(f"{name}, seed {seed}")
                self._meet()
                told[name].append(ways[name](seed))
        self._meet()
        return told

    def _idle(self, seed: int) -> Told:
        """The first process alone, while the other waits."""
        return self._alone(seed) if self._rank == 0 else {}

    def _alone(self, seed: int) -> Told:
        """No exchange: the plain estimator."""
        made = self._model(seed, self._options.delay_of_one).fit(self._split.train)
        return {
            "seconds": made.training_seconds_,
            "batches": made.n_batch_iter_ - 1,
            "documents": made.n_iter_ * self._split.train.shape[0],
            **(self._scores(made) if self._rank == 0 else {}),
        }

    def _node(self, seed: int) -> Told:
        """As one of the nodes."""
        made, train = self._model(seed, self._options.delay_of_two), self._split.train
        documents = TopicDocuments(train, model=made, held_out=self._split.validation, seed=seed)
        # As many batches as one process takes, by whoever is able: cores of one kind differ by a third from run to run.
        steps = self._options.passes * -(-train.shape[0] // self._options.batch)
        node = Unwatched(
            self._fabrics(True, None),
            self._rank,
            self._size,
            workload=documents.shard(self._rank, self._size),
            # Never asked to step: a batch writes into the vector itself.
            optimizer=partial(torch.optim.SGD, lr=1.0),
            steps=Budget(steps=steps),
            record_every=steps,
            seed=seed,
            timeout=_TIMEOUT,
            one_sided=True,
        )
        self._meet()
        began = time.monotonic()
        drive(self._strategy.run(node))
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
            **(self._scores(made) if self._rank == 0 else {}),
        }

    def _model(self, seed: int, delay: float) -> LDA:
        other = {"batch_size": self._options.batch, "max_iter": self._options.passes, "learning_delay": delay}
        return ours.model(self._options.topics, seed, self._options.objective, 1, **other)

    def _meet(self) -> None:
        """Begin together, however long each took before."""
        self._meetings += 1
        place = f"ready {self._meetings}"
        self._store.add(place, 1)
        while self._store.add(place, 0) < self._size:
            time.sleep(0.01)

    def _scores(self, made: LDA) -> dict[str, float]:
        parts: dict[str, Any] = {"validation": self._split.validation, "test": self._split.test}
        return {name: part.of_components(made.components_) for name, part in parts.items()}


if __name__ == "__main__":
    main()
