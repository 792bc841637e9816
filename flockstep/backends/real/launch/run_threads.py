"""Nodes as threads of this process."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict

from flockstep.backends.real.collective.threads import Hub, ThreadFabric
from flockstep.backends.real.fabric import Fabric, MakeFabric
from flockstep.backends.real.launch.jobs import Job, OnRow, Outcome, Stop
from flockstep.backends.real.launch.root_cause import root_cause
from flockstep.elastic import Elastic
from flockstep.errors import FlockstepError


def run_threads(job: Job, on_row: OnRow | None, stop: Stop | None) -> dict[int, Outcome]:
    """Run every node in a thread of its own."""
    outcomes: dict[int, Outcome] = {}
    errors: dict[int, FlockstepError] = {}
    # The k-th fabric of one thread belongs with the k-th of every other.
    hubs: dict[int, Hub] = defaultdict(lambda: Hub(job.size, job.timeout))
    lock = threading.Lock()

    def fabrics(rank: int) -> MakeFabric:
        joins = itertools.count()

        def make(one_sided: bool, elastic: Elastic | None) -> Fabric:
            if elastic is not None and not one_sided:
                raise ValueError('threads of one process end together: elastic runs take on="processes", or simulate')
            with lock:
                hub = hubs[next(joins)]
            if errors:
                hub.failed.update(errors)
            return ThreadFabric(hub, rank, one_sided=one_sided)

        return make

    def body(rank: int) -> None:
        try:
            outcomes[rank] = job.run(rank, fabrics(rank), on_row, stop)
        except FlockstepError as error:
            with lock:
                errors[rank] = error
                for hub in hubs.values():
                    hub.fail(rank, error)

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(job.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise root_cause(errors)
    return outcomes
