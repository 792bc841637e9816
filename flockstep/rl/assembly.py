"""From what a user asks for to environments, a policy and the engine that trains it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import nn

from flockstep import check
from flockstep.cores import cores
from flockstep.rl.compiled.classic import KNOWN
from flockstep.rl.compiled.compiled_engine import CompiledEngine
from flockstep.rl.engine import Engine
from flockstep.rl.environments.atari import atari, is_game
from flockstep.rl.environments.copies import Environments, Envpool, InProcess, is_vector, made
from flockstep.rl.environments.spaces import Actions, Observations
from flockstep.rl.environments.vector_environments import Vector
from flockstep.rl.nets.torch_engine import TorchEngine
from flockstep.rl.policies.mlp import MlpPolicy
from flockstep.rl.policies.networks import POLICIES
from flockstep.rl.policies.policy_options import arguments_of
from flockstep.rl.settings import Settings


def environments(source: Any, count: int | None, *, envpool: bool, images: bool, threads: int = 1) -> Environments:
    """So many copies of what was asked for; Atari games come with the usual preprocessing where images are wanted.

    Without a number they are to look at and to play in: one, or as many as a vector environment has.
    """
    copies = 1 if count is None else count
    if is_atari(source, images=images):
        return atari(source, copies, emulator="envpool" if envpool else None, threads=threads)
    if envpool:
        if not isinstance(source, str):
            raise TypeError(f"HSA2C.env must be the name of an environment for envpool, got {source!r}")
        return Envpool(source, copies)
    first = made(source)
    if not is_vector(first):
        return InProcess(source, copies, first)
    vector = Vector(first)
    copies_of(vector, count)
    return vector


def copies_of(found: Environments, asked: int | None) -> int:
    """How many copies each thread steps: as many as are asked for, and where a vector environment is, those it has."""
    if not isinstance(found, Vector):
        return Settings.envs_per_thread if asked is None else asked
    if asked not in (None, found.count):
        found.close()
        raise ValueError(
            f"HSA2C.envs_per_thread must be {found.count}, as many as the vector environment has, got {asked}"
        )
    return found.count


def policy_for(
    policy: str | nn.Module,
    observations: Observations,
    actions: Actions,
    options: Mapping[str, Any],
    seed: int,
    *,
    normalize_observations: bool = False,
    normalize_rewards: bool = False,
) -> nn.Module:
    """The network: one of the known ones, begun from a seed, or the user's own as it is."""
    asked = {"normalize_observations": normalize_observations, "normalize_rewards": normalize_rewards}
    normalize = {name: True for name, wanted in asked.items() if wanted}
    if normalize and policy != "MlpPolicy":
        given = policy if isinstance(policy, str) else type(policy).__name__
        raise ValueError(f"HSA2C.{next(iter(normalize))} is for MlpPolicy, got {given}")
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
        begun = POLICIES[policy](observations, actions, **arguments_of(policy, options), **normalize)
    if normalize and not is_compiled(begun, actions):
        which = "several choices at once" if actions.parts else "activations other than tanh"
        raise ValueError(f"HSA2C.{next(iter(normalize))} is for compiled policies, which {which} have none of")
    return begun


def engine_for(
    policy: nn.Module, source: Any, actions: Actions, settings: Settings, *, envpool: bool, seed: int, begin_at: int
) -> Engine:
    """Compiled for small networks with tanh that choose one thing at a time, torch for all others."""
    images = not isinstance(policy, MlpPolicy)
    on_cpu = next(policy.parameters()).device.type == "cpu"
    # Workers on a GPU are of one process, and share its cores: half as many again as there are, for while one worker
    # acts or learns, its emulators wait.
    each = 1 if on_cpu else max(1, math.ceil(1.5 * cores() / settings.threads))
    make = partial(environments, source, settings.envs_per_thread, envpool=envpool, images=images, threads=each)
    if is_compiled(policy, actions):
        env = source if source_is_compiled(source, envpool) else make
        return CompiledEngine(policy, env, actions, settings, seed=seed, begin_at=begin_at)
    # Resumed training must not meet the same episodes again.
    return TorchEngine(policy, make, settings, seed=(seed + begin_at) % 2**31, parts=actions.parts)


def is_compiled(policy: nn.Module, actions: Actions) -> TypeGuard[MlpPolicy]:
    """Whether there is compiled code for it: one choice or real numbers, from layers of tanh."""
    return isinstance(policy, MlpPolicy) and policy.activation is nn.Tanh and not actions.parts


def is_atari(source: Any, *, images: bool) -> bool:
    """Whether it is one of the games of rl/environments/atari.py."""
    return isinstance(source, str) and images and is_game(source)


def source_is_compiled(source: Any, envpool: bool) -> bool:
    """Whether an environment has a compiled form."""
    return isinstance(source, str) and source in KNOWN and not envpool
