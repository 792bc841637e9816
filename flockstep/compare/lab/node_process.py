"""Nodes in a laboratory: each runs this module in its network namespace, as torchrun would start it.

Node 0 tells what happens line by line, as JSON: rows as they come, and in the end the trace of all, or the error that
ended it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import IO, Any

import torch

import flockstep as fs
from flockstep import errors
from flockstep.compare.cluster import RealCluster
from flockstep.compare.lab.lab import Lab
from flockstep.compare.plan import Comparison, Entry
from flockstep.compare.runs import arguments
from flockstep.texts.optimizer_texts import OptimizerName
from flockstep.trace import Row, Trace

_PATIENCE = 60.0
"""Seconds the others may take to leave once node 0 has."""


def launch_in(
    lab: Lab,
    comparison: Comparison,
    index: int,
    *,
    seed: int,
    timeline: bool,
    on_row: Callable[[Row], None] | None = None,
    **rest: Any,
) -> Trace:
    """What ``fs.launch`` does, with every node in a namespace of the laboratory; they know the rest themselves."""
    job = {"comparison": asdict(comparison), "index": index, "seed": seed, "timeline": timeline}
    command = [sys.executable, "-m", "flockstep.compare.lab.node_process", json.dumps(job)]
    with ExitStack() as stack:
        errs = [stack.enter_context(tempfile.TemporaryFile()) for _ in lab.nodes]
        crew = []
        for node, err in zip(lab.nodes, errs, strict=True):
            out = subprocess.DEVNULL if node.rank else subprocess.PIPE
            process = node.start(command, lab.torch_environment(node.rank), stdout=out, stderr=err)
            stack.callback(_end, process)
            crew.append(process)
        trace = _listen(crew[0].stdout, on_row)  # type: ignore[arg-type]
        if trace is None:
            raise fs.NodeFailed(f"node 0 ended without a word: {_last_line(errs)}")
        for process in crew:
            process.wait(_PATIENCE)
    return trace


def _listen(said: IO[bytes], on_row: Callable[[Row], None] | None) -> Trace | None:
    for line in said:
        kind, payload = json.loads(line)
        if kind == "row" and on_row is not None:
            on_row(Row(**payload))
        elif kind == "trace":
            return Trace.from_json(json.dumps(payload))
        elif kind == "error":
            name, message, rank, time = payload
            raise getattr(errors, name)(message, rank=rank, time=time)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _last_line(files: Sequence[IO[bytes]]) -> str:
    for file in files:
        file.seek(0)
        lines = file.read().decode(errors="replace").strip().splitlines()
        if lines:
            return lines[-1]
    return "and said nothing"


def rebuilt(plain: dict[str, Any]) -> Comparison:
    """A comparison for real, back from ``asdict`` and JSON."""
    entries = (
        Entry(**{**entry, "optimizer": entry["optimizer"] and OptimizerName(entry["optimizer"])})
        for entry in plain["entries"]
    )
    whole = {"cluster": RealCluster(**plain["cluster"]), "entries": tuple(entries), "seeds": tuple(plain["seeds"])}
    return Comparison(**{**plain, **whole})


def main() -> None:
    """One node, in the place that the environment says."""
    # What the user's own code prints must not be taken for what this node tells.
    with os.fdopen(os.dup(1), "w", encoding="utf8") as payload:
        os.dup2(2, 1)

        def tell(kind: str, what: Any) -> None:
            payload.write(json.dumps([kind, what]) + "\n")
            payload.flush()

        job = json.loads(sys.argv[1])
        # Nobody else is in the laboratory's network.
        warnings.filterwarnings("ignore", message="the mailbox listens on")
        torch.set_num_threads(1)
        comparison = rebuilt(job["comparison"])
        entry = comparison.entries[job["index"]]
        try:
            given = arguments(comparison, entry, job["seed"], lambda row: tell("row", asdict(row)))
            trace = fs.launch(timeline=job["timeline"], **given)
        except fs.FlockstepError as error:
            tell("error", [type(error).__name__, error.message, error.rank, error.time])
            raise
        tell("trace", json.loads(trace.to_json()))


if __name__ == "__main__":
    main()
