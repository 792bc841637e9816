"""What is run: five methods, three noises and two graphs; and three settings that ask what error feedback is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

import flockstep as fs
from experiments.sclip_quadratic.falling import fifth_root, harmonic
from flockstep.node import OptimizerFactory
from flockstep.workloads.noises import AlphaStable, LogTail, Noise, StudentT
from flockstep.workloads.noisy import Noisy
from flockstep.workloads.rotated import RotatedQuadratics

NODES, DIM = 20, 10
C_BETA, C_ETA, C_PHI, TAU = 0.9, 1.0, 20.0, 100.0
MAX_NORM = 5.0
SCLIP, WITHOUT, CONSTANT = "SClip-EF", "without error feedback", "constant clip"
GROWING, PLAIN = "growing clip", "plain SGD"
METHODS = (SCLIP, WITHOUT, CONSTANT, GROWING, PLAIN)
COMPLETE, RING = "complete", "ring"
GRAPHS = (COMPLETE, RING)
MAIN = "log-tail noise"
NOISES: dict[str, Noise] = {
    MAIN: LogTail(),
    "Student-t(1.5) noise": StudentT(df=1.5),
    "alpha-stable(1.3) noise": AlphaStable(alpha=1.3),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One method in one setting."""

    setting: str
    graph: str
    method: str
    strategy: fs.Strategy
    optimizer: OptimizerFactory
    problem: Noisy


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Those of SClip-EF, where they are not the usual ones."""

    clip: fs.clips.SmoothClip = fs.clips.SmoothClip(c_phi=C_PHI, tau=TAU)
    c_eta: float = C_ETA
    beta_power: float = 0.5


def problem(noise: Noise, *, offset: float = 3.0, seed: int = 0) -> Noisy:
    """Quadratics with that noise on every gradient."""
    return Noisy(workload=RotatedQuadratics(dim=DIM, offset=offset, seed=seed), noise=noise)


def case(setting: str, graph: str, method: str, where: Noisy, constants: Constants = Constants()) -> Case:
    """A method on a graph: the network form of each is ``x_i <- sum_j w_ij (x_j - step of j)``."""
    strategy, optimizer = (
        _with_feedback(graph, constants) if method == SCLIP else _without_feedback(graph, method, constants)
    )
    return Case(setting=setting, graph=graph, method=method, strategy=strategy, optimizer=optimizer, problem=where)


def _with_feedback(graph: str, constants: Constants) -> tuple[fs.Strategy, OptimizerFactory]:
    optimizer = partial(torch.optim.SGD, lr=constants.c_eta)
    clip, power = constants.clip, constants.beta_power
    if graph == COMPLETE:
        # The network form with W = 11'/n is the server form.
        return fs.SClipEF(clip=clip, c_beta=C_BETA, beta_power=power), optimizer
    return fs.SClipEFNetwork(clip=clip, c_beta=C_BETA, beta_power=power, topology=fs.topologies.Ring()), optimizer


def _without_feedback(graph: str, method: str, constants: Constants) -> tuple[fs.Strategy, OptimizerFactory]:
    average: fs.Average = (
        fs.averages.Exact()
        if graph == COMPLETE
        else fs.averages.Mixed(topology=fs.topologies.Ring(), codec=fs.codecs.Raw())
    )
    clips: dict[str, fs.Clip] = {
        WITHOUT: constants.clip,
        CONSTANT: fs.clips.ClipNorm(max_norm=MAX_NORM),
        GROWING: fs.clips.ClipNorm(max_norm=lambda t: MAX_NORM * (t + 1) ** 0.4),
        PLAIN: fs.clips.NoClip(),
    }
    optimizer = fifth_root(constants.c_eta) if method == WITHOUT else harmonic()
    return fs.LocalSGD(period=1, clip=clips[method], average=average), optimizer


def main_cases() -> list[Case]:
    """Every method with every noise on every graph."""
    return [
        case(setting, graph, method, problem(noise))
        for setting, noise in NOISES.items()
        for graph in GRAPHS
        for method in METHODS
    ]


SMALL, APART, FROZEN = "small eps: c_phi 2, tau 1", "far apart: offset 30", "frozen: phi 20, eps 1, beta .9"


def feedback_cases() -> list[Case]:
    """SClip-EF with and without its error feedback, where gradients at the optimum are large against sqrt(eps)."""
    frozen = fs.clips.SmoothClip(c_phi=20.0, tau=1.0, phi_power=0.0, eps_power=0.0)
    settings = {
        SMALL: (problem(LogTail()), Constants(clip=fs.clips.SmoothClip(c_phi=2.0, tau=1.0))),
        APART: (problem(LogTail(), offset=30.0), Constants()),
        FROZEN: (problem(LogTail()), Constants(clip=frozen, c_eta=0.02, beta_power=0.0)),
    }
    return [
        case(setting, COMPLETE, method, where, constants)
        for setting, (where, constants) in settings.items()
        for method in (SCLIP, WITHOUT)
    ]


def other_problems(seeds: Sequence[int]) -> list[Case]:
    """The main setting with other matrices A and centres b, which each of these seeds draws anew."""
    return [
        case(f"problem {seed}", COMPLETE, method, problem(LogTail(), seed=seed))
        for seed in seeds
        for method in (SCLIP, CONSTANT)
    ]
