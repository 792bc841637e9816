"""Torch's modes, which must not be on where a program waits: another virtual node would go on in them."""

from __future__ import annotations

import torch


def torch_modes() -> tuple[bool, bool, bool]:
    """The modes a torch context manager would change. A backend compares them at every ``await``."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")


def await_in_context() -> RuntimeError:
    """What is raised into a program that awaits inside a torch context manager."""
    return RuntimeError(
        "await inside a torch context manager (no_grad, inference_mode, autocast ...): "
        "the mode would leak into other nodes; leave the `with` block before the await"
    )
