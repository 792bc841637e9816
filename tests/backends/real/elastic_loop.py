"""A node of an elastic run: a small model in a loop of the user's own, which says every step of it.

Its pipe brings ("may", step), up to which step it may go, and ("end", step), where it ends; so a test decides what
happens before what.
"""

import itertools
import os
import signal

import torch

import flockstep as fs
from flockstep.backends.real.rounds.assembly import Assembly
from flockstep.backends.real.rounds.carrier.mean_task import MeanTask
from flockstep.backends.real.rounds.council.council import Council

STRATEGIES = {
    "LocalSGD": fs.LocalSGD(period=4),
    "CELGC": fs.CELGC(period=4),
    "DiLoCo": fs.DiLoCo(period=4),
    "StreamingDiLoCo": fs.StreamingDiLoCo(period=4, fragments=2, delay=2),
    "HPSGD": fs.HPSGD(period=4),
    "CoCoD": fs.CoCoD(period=4),
    "DataParallel": fs.DataParallel(),
    "Swarm": fs.Swarm(period=4),
    "Gossip": fs.Gossip(),
    "Coded": fs.LocalSGD(period=4, average=fs.averages.Coded(codec=fs.codecs.Cast())),
    "Compensated": fs.CoCoD(period=4, average=fs.averages.Compensated(codec=fs.codecs.Stochastic(bits=8))),
}


PHASES = {
    "before it is brought": (Assembly, "bring"),
    "when it is begun": (Assembly, "carry_out"),
    "between two pieces": (MeanTask, "next_frame"),
    "before it says that it has the result": (Council, "finished"),
    "before it takes what is committed": (Assembly, "deliver"),
}
"""Parts of a round, and the method that is called in it."""


def die_in(phase, number):
    """Let the so-many-th call of a phase's method be this process's last."""
    owner, name = PHASES[phase]
    method, calls = getattr(owner, name), itertools.count(1)

    def last(*arguments, **named):
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **named)

    setattr(owner, name, last)


def child(pipe, environment, strategy, elastic, options, dies=None):
    """In a process of its own."""
    os.environ |= environment
    if dies:
        die_in(*dies)
    try:
        train(pipe, strategy, elastic, options)
    except Exception as error:
        pipe.send({"failed": f"{type(error).__name__}: {error}"})
        raise


def train(pipe, strategy, elastic, options):
    torch.set_num_threads(1)
    rank = fs.rank()
    # The same for all, since any of them may die before the others have its weights.
    torch.manual_seed(100)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    # The same everywhere, and all of it at every step: how many nodes there are makes no difference to what is learned.
    whole = torch.Generator().manual_seed(0)
    x = torch.randn(64, 8, generator=whole)
    y = x.sum(1, keepdim=True).sin()
    may, end = 0, None
    with fs.join(model, optimizer, STRATEGIES[strategy], elastic=elastic, **options) as node:
        pipe.send({"rank": node.rank, "begins": node.step_count, "address": node.address})
        while end is None or node.step_count < end:
            while end is None and node.step_count >= may:
                kind, step = pipe.recv()
                may, end = (step, None) if kind == "may" else (may, step)
            if end is not None and node.step_count >= end:
                break
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            pipe.send({"rank": node.rank, "step": node.step_count, "view": list(node.view), "loss": loss.item()})
    report = node.report()
    views = [[list(change.members), list(change.came), list(change.went)] for change in report.views]
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    end = {"rank": rank, "ended": node.step_count, "loss": torch.nn.functional.mse_loss(model(x), y).item()}
    waited = [change.cost for change in report.views]
    pipe.send({**end, "counts": report.counts, "views": views, "waited": waited, "model": weights})
