"""``policy_kwargs``: what may be asked of policies that have a name, under the names that stable-baselines3 has for it.

An activation is a class of torch.nn, and its name in files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from flockstep import check

_EVERY = ("ortho_init", "log_std_init")
KNOWN = {
    "MlpPolicy": ("net_arch", "shared", "activation_fn", *_EVERY),
    "CnnPolicy": _EVERY,
    "A3CPolicy": _EVERY,
}
_OWNER = "HSA2C.policy_kwargs"


def as_json(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The same, as a file can hold them."""
    options = dict(options or {})
    if isinstance(options.get("activation_fn"), type):
        options["activation_fn"] = _activation(options["activation_fn"]).__name__
    return options


def arguments_of(policy: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the network is made with."""
    if unknown := [str(name) for name in options if name not in KNOWN[policy]]:
        raise ValueError(
            f"{_OWNER} of {policy} may have {', '.join(KNOWN[policy])}, got {', '.join(sorted(unknown))}\n"
            "  for anything else give a torch module of your own as the policy"
        )
    ortho_init = options.get("ortho_init", True)
    if not isinstance(ortho_init, bool):
        raise TypeError(f"{_OWNER}.ortho_init must be True or False, got {ortho_init!r}")
    log_std_init = check.real(_OWNER, "log_std_init", options.get("log_std_init", 0.0))
    begun = {"ortho_init": ortho_init, "log_std_init": log_std_init}
    if policy != "MlpPolicy":
        return begun
    return {**_widths(options), "activation": _activation(options.get("activation_fn", "Tanh")), **begun}


def _widths(options: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    """As stable-baselines3 writes them, and ``shared`` beside."""
    net = options.get("net_arch", [64, 64])
    shared = options.get("shared", False)
    if isinstance(net, Mapping):
        if shared or not set(net) <= {"pi", "vf"}:
            raise ValueError(f"{_OWNER}.net_arch must have pi and vf, which share nothing, got {net}")
        return {"actor": net.get("pi", ()), "critic": net.get("vf", ()), "shared": ()}
    if not isinstance(net, Sequence) or isinstance(net, str):
        raise TypeError(f"{_OWNER}.net_arch must list the widths of hidden layers, got {net!r}")
    if shared:
        return {"actor": (), "critic": (), "shared": tuple(net)}
    return {"actor": tuple(net), "critic": tuple(net), "shared": ()}


def _activation(given: Any) -> type[nn.Module]:
    """A class of torch.nn that changes numbers one by one; of others a file could not hold the name alone."""
    name = given if isinstance(given, str) else getattr(given, "__name__", "")
    found = getattr(nn, name, None) if name in nn.modules.activation.__all__ else None
    try:
        fits = found is not None and given in (name, found) and found()(torch.zeros(2, 3)).shape == (2, 3)
    except (TypeError, RuntimeError):
        fits = False
    if found is None or not fits:
        raise ValueError(
            f"{_OWNER}.activation_fn must be an activation of torch.nn that needs no arguments, such as torch.nn.ReLU, "
            f"got {given!r}"
        )
    kind: type[nn.Module] = found
    return kind
