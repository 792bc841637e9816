"""From what a user asks for to environments, a policy and the engine that trains it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from flockstep import check
from flockstep.cores import cores
from flockstep.rl.compiled.classic import KNOWN
from flockstep.rl.compiled.engine import CompiledEngine
from flockstep.rl.engine import Engine
from flockstep.rl.environments import Environments, Envpool, InProcess
from flockstep.rl.mlp import MlpPolicy
from flockstep.rl.nets.engine import TorchEngine
from flockstep.rl.networks import POLICIES
from flockstep.rl.policy_options import arguments_of
from flockstep.rl.settings import Settings
from flockstep.rl.spaces import Actions, Observations

_ATARI = re.compile(r"^ALE/|NoFrameskip-v\d+$")


def environments(source: Any, count: int, *, envpool: bool, images: bool, threads: int = 1) -> Environments:
    """So many copies of what was asked for; Atari games come with the usual preprocessing where images are wanted."""
    if isinstance(source, str) and images and _ATARI.search(source):
        from flockstep.rl.atari import atari

        return atari(source, count, emulator="envpool" if envpool else None, threads=threads)
    if not envpool:
        return InProcess(source, count)
    if not isinstance(source, str):
        raise TypeError(f"HSA2C.env must be the name of an environment for envpool, got {source!r}")
    return Envpool(source, count)


def policy_for(
    policy: str | nn.Module, observations: Observations, actions: Actions, options: Mapping[str, Any], seed: int
) -> nn.Module:
    """The network: one of the known ones, begun from a seed, or the user's own as it is."""
    if isinstance(policy, nn.Module):
        if options:
            raise ValueError("HSA2C.policy_kwargs go with the name of a policy, not with a module of your own")
        return policy
    if not isinstance(policy, str):
        raise TypeError(f"HSA2C.policy must be {', '.join(POLICIES)} or a torch module, got {policy!r}")
    check.one_of("HSA2C", "policy", policy, tuple(POLICIES))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if policy == "MlpPolicy":
            if observations.is_image and observations.dtype == "uint8":
                raise ValueError(f"HSA2C.policy must be CnnPolicy for images of shape {observations.shape}")
        elif not observations.is_image:
            raise ValueError(
                f"HSA2C.policy must be MlpPolicy for observations of shape {observations.shape}: {policy} is for images"
            )
        return POLICIES[policy](observations, actions, **arguments_of(policy, options))


def engine_for(
    policy: nn.Module, source: Any, actions: Actions, settings: Settings, *, envpool: bool, seed: int, begin_at: int
) -> Engine:
    """Compiled for small networks with tanh, torch for all others."""
    images = not isinstance(policy, MlpPolicy)
    on_cpu = next(policy.parameters()).device.type == "cpu"
    # Workers on a GPU are of one process, and share its cores: half as many again as there are, for while one worker
    # acts or learns, its emulators wait.
    each = 1 if on_cpu else max(1, math.ceil(1.5 * cores() / settings.threads))
    make = partial(environments, source, settings.envs_per_thread, envpool=envpool, images=images, threads=each)
    if isinstance(policy, MlpPolicy) and policy.activation is nn.Tanh:
        env = source if source_is_compiled(source, envpool) else make
        return CompiledEngine(policy, env, actions, settings, seed=seed, begin_at=begin_at)
    # Resumed training must not meet the same episodes again.
    return TorchEngine(policy, make, settings, seed=(seed + begin_at) % 2**31)


def source_is_compiled(source: Any, envpool: bool) -> bool:
    """Whether an environment has a compiled form."""
    return isinstance(source, str) and source in KNOWN and not envpool
