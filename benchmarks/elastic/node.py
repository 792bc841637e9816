"""One node of the comparison: takes every row in turns with the others, and rank 0 tells how long each took."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.elastic.bare import Bare
from benchmarks.elastic.rows import BARE, BARE_TLS, GLOO, MEAN, MEAN_TLS
from flockstep.backends.real.collective import c10d
from flockstep.backends.real.mailbox.endpoint import Endpoint, ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.rounds.carrier.carrier import Carrier
from flockstep.backends.real.rounds.council.words import Attempt, Key
from flockstep.backends.real.security.keys import Keys

dist: Any = torch.distributed
RUN = b"benchmarks.elast"
TIMEOUT = 600.0
_BYTES_A_TURN = 4_000_000
_MOST_A_TURN = 50


def main() -> None:
    """Do this rank's part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", nargs="+", required=True, help="each node's address")
    parser.add_argument("--folder", type=Path, required=True, help="where keys are, and where nodes find each other")
    parser.add_argument("--sizes", nargs="+", type=int, required=True, help="bytes of the vectors")
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--rows", nargs="+", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # Nobody else is on loopback, or in the laboratory's network.
    warnings.filterwarnings("ignore", message="the mailbox listens on")
    node = Node(int(os.environ["RANK"]), options.host, options.folder, options.rows)
    found = [node.measure(size, options.repeats) for size in options.sizes]
    node.close()
    print(json.dumps(found), flush=True)


class Node:
    """All rows, open at once."""

    def __init__(self, rank: int, hosts: list[str], folder: Path, rows: list[str]) -> None:
        self._rank, self._nodes, self._hosts, self._folder = rank, len(hosts), hosts, folder
        self._store = c10d.FileStore(str(folder / f"store of {self._nodes}"), self._nodes)
        self._group = c10d.gloo(self._store, rank, self._nodes, timedelta(seconds=TIMEOUT))
        self._endpoints: list[Endpoint] = []
        self._bare: list[Bare] = []
        self._tell("host " + str(rank), hosts[rank])
        made: dict[str, Callable[[str], Callable[[Tensor], object]]] = {
            GLOO: lambda name: lambda v: self._group.allreduce([v]).wait(),
            MEAN: lambda name: self._carrier(name, None),
            MEAN_TLS: lambda name: self._carrier(name, self._keys()),
            BARE: lambda name: self._sockets(name, None),
            BARE_TLS: lambda name: self._sockets(name, self._keys()),
        }
        self._rows = {name: made[name](name) for name in rows}

    def measure(self, size: int, repeats: int) -> dict[str, Any]:
        """Of each row, seconds per mean and of a core in all, the slowest node's, round by round."""
        v = torch.rand(size // 4, generator=torch.Generator().manual_seed(self._rank))
        self._check(v)
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in self._rows}
        times = max(1, min(_MOST_A_TURN, _BYTES_A_TURN // size))
        for number in range(-1, repeats):
            if self._rank == 0:
                print(f"{size} bytes, round {number + 1} of {repeats}", file=sys.stderr, flush=True)
            first = number % len(took)
            names = list(took)[first:] + list(took)[:first]
            # The first round only warms them up.
            for name in names[::-1] if number % 2 else names:
                both = self._time(self._rows[name], v, times)
                if number >= 0:
                    took[name].append(both)
        return {"size": size, "nodes": self._nodes, "took": took}

    def _time(self, row: Callable[[Tensor], object], v: Tensor, times: int) -> tuple[float, float]:
        gc.collect()
        self._group.barrier().wait()
        began, used = time.perf_counter(), time.process_time()
        for _ in range(times):
            row(v)
        both = torch.tensor([time.perf_counter() - began, time.process_time() - used], dtype=torch.float64) / times
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._group.allreduce([both], options).wait()
        return float(both[0]), float(both[1])

    def _check(self, v: Tensor) -> None:
        """Whether what our rows bring is the mean; gloo overwrites what it is given, and the mean of means is fine."""
        wanted = v.double()
        self._group.allreduce([wanted]).wait()
        for name in (MEAN, MEAN_TLS):
            if name in self._rows:
                found: Any = self._rows[name](v)
                if not torch.allclose(found.double(), wanted / self._nodes, rtol=1e-5, atol=1e-6):
                    raise RuntimeError(f"{name}: this is not the mean")

    def _carrier(self, name: str, keys: Keys | None) -> Callable[[Tensor], Tensor]:
        site = ListenOn(self._hosts[self._rank], keys=keys, insecure=keys is None)
        endpoint = open_endpoint(RUN, self._rank, self._nodes, Limits(TIMEOUT), site)
        self._endpoints.append(endpoint)
        self._tell(f"{name} {self._rank}", str(endpoint.box.members.me))
        for peer in range(self._nodes):
            if peer != self._rank:
                endpoint.box.members.learn(self._ask(f"{name} {peer}"))
        carrier, ranks, rounds = Carrier(self._rank, endpoint.box, TIMEOUT), tuple(range(self._nodes)), [0]

        def mean(v: Tensor) -> Tensor:
            rounds[0] += 1
            return carrier.mean(Key("model", rounds[0]), Attempt(1, rounds[0]), ranks, v)

        return mean

    def _sockets(self, name: str, keys: Keys | None) -> Callable[[Tensor], None]:
        self._bare.append(Bare(name, self._rank, self._nodes, self._hosts[self._rank], keys, self._tell, self._ask))
        return self._bare[-1].mean

    def _keys(self) -> Keys:
        return Keys.find(self._folder / "keys", self._rank)

    def _tell(self, what: str, said: str) -> None:
        self._store.set(what, said)

    def _ask(self, what: str) -> str:
        return str(self._store.get(what).decode())

    def close(self) -> None:
        """Hang up, all at once."""
        self._group.barrier().wait()
        for endpoint in self._endpoints:
            endpoint.close()
        for sockets in self._bare:
            sockets.close()


if __name__ == "__main__":
    main()
    # A group that ends while the interpreter does may take the process down.
    os._exit(0)
