"""The options of commands that run strategies, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from flockstep.texts import parse
from flockstep.texts.optimizer_texts import OptimizerName

_WHAT = "What to run, such as DataParallel or 'CELGC(period=8)'; one or more."
_WORKLOADS = f"What to train: {', '.join(parse.WORKLOADS)}; arguments as in quadratics(dim=100)."

Strategies = Annotated[list[str], Argument(metavar="STRATEGY", help=_WHAT)]
Workload = Annotated[str, Option(help=_WORKLOADS)]
Nodes = Annotated[int, Option(help="How many virtual nodes.")]
Steps = Annotated[int, Option(help="Steps each node takes.")]
LearningRate = Annotated[float, Option(help="The optimizer's learning rate.")]
Optimizer = Annotated[OptimizerName, Option(help="Every node's local optimizer; momentum is SGD with 0.9.")]
Link = Annotated[str, Option(help="Bandwidth of every node's up- and downlink.")]
Latency = Annotated[str, Option(help="One-way delay between two nodes.")]
StepTime = Annotated[str, Option(help="Mean time a gradient takes.")]
Spread = Annotated[float, Option(help="How uneven those times are: 0 not at all, 0.5 very.")]
Straggler = Annotated[list[str] | None, Option(help="3:4x makes node 3 four times slower; repeatable.")]
Slowdown = Annotated[list[str] | None, Option(help="3:4x@60s+30s does so from 60 s on for 30 s; repeatable.")]
Crash = Annotated[
    list[str] | None, Option(help="5@60s kills node 5 after 60 s; with +30s it begins anew later; repeatable.")
]
Pause = Annotated[list[str] | None, Option(help="2@10s+5s stops node 2 from 10 s on for 5 s; repeatable.")]
Partition = Annotated[list[str] | None, Option(help="0,1|2,3@10s+5s cuts 0 and 1 off from 2 and 3; repeatable.")]
Drop = Annotated[
    list[str] | None, Option(help="0.05 loses one message in twenty; 0.05@10s+5s does for a while; repeatable.")
]
Elastic = Annotated[
    bool,
    Option("--elastic", help="Go on when nodes die, are cut off or stand still, and take in those that come back."),
]
MinNodes = Annotated[
    int | None, Option(help="With --elastic: least nodes that go on together; more than half of the last unless given.")
]
Seed = Annotated[int, Option(help="One seed, one outcome.")]
Threads = Annotated[int, Option(help="Threads torch computes with; more only help large models.")]
Out = Annotated[Path, Option(help="Folder for the picture and the rows.")]
Debug = Annotated[bool, Option("--debug", help="Show the traceback of an error.")]

OUT = Path("flockstep-out")
"""Where pictures and rows go unless told otherwise."""
