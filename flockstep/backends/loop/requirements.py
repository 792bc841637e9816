"""What a model and its optimizers must be for a loop to be joined: each line here is one that trained wrong before.

Whatever cannot be trained right is refused at the door, in one sentence that says what to do instead.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from flockstep.backends.loop import island_members
from flockstep.backends.loop.island import local
from flockstep.backends.loop.several_optimizers import name_of


def check_model(model: nn.Module, island: Any = None) -> None:
    """ValueError or TypeError unless this model can be one vector on this node, or on the processes of an island."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"join.model must be a torch module, got {model!r}")
    _check_wrappers(model, island)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise ValueError(f"{name} has no shape yet: run one batch through the model before it joins")
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trained:
        raise ValueError("this model has no trainable parameters: nothing to train together")
    for name, parameter in trained:
        _check_parameter(name, parameter)
    devices = {parameter.device for _, parameter in trained}
    if len(devices) > 1:
        name_of = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"this model lies on several devices ({name_of}); one per node is needed")
    _check_memory(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise ValueError(
                f"{name or 'this model'} has sparse gradients (sparse=True), and models are averaged whole\n"
                "  make the embedding with sparse=False"
            )


def _check_wrappers(model: nn.Module, island: Any) -> None:
    for name, module in model.named_modules():
        where = f"join.model's {name}" if name else "join.model"
        if isinstance(module, DistributedDataParallel):
            if island is None:
                raise TypeError(
                    f"{where} is wrapped in DistributedDataParallel, which would average gradients at every step "
                    "beneath the strategy\n  join the module inside (model.module), and do not wrap it; or, where the "
                    "processes that it averages over are to be one node, say so: join(..., island=mesh)"
                )
            island_members.check_ddp(module, island, where)
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ValueError(
                f"{where} is sharded by FullyShardedDataParallel, whose flat parameters have no place of their own\n"
                "  use fully_shard(model, mesh=...) of torch.distributed.fsdp"
            )


def _check_parameter(name: str, parameter: Tensor) -> None:
    parameter = local(parameter)
    if is_traceable_wrapper_subclass(parameter.data):
        kind = type(parameter.data).__name__
        raise TypeError(f"parameter {name} trains and is a {kind}, not plain numbers: it cannot be averaged")
    if parameter.is_meta:
        raise ValueError(f"parameter {name} lies on the meta device: it has no numbers to train")
    if parameter.layout is not torch.strided:
        raise TypeError(f"parameter {name} is sparse ({parameter.layout}): it cannot be averaged")
    if not (parameter.is_floating_point() or parameter.is_complex()) or parameter.element_size() < 2:
        raise TypeError(f"parameter {name} is {parameter.dtype}: no mean can be taken of it")


def _check_memory(model: nn.Module) -> None:
    """A parameter gets other memory at the door: nobody else may live in what it had."""
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    before: _Span | None = None
    for span in sorted(_spans(model), key=lambda span: (span.device, span.start)):
        if before is not None and before.device == span.device and span.start < before.end:
            if id(before.tensor) in trained or id(span.tensor) in trained:
                raise ValueError(
                    f"{before.name} and {span.name} share memory without being one tensor: they would come apart\n"
                    "  let both names hold the same Parameter, which is averaged once"
                )
            if span.end <= before.end:
                continue
        before = span


class _Span(NamedTuple):
    device: str
    start: int
    end: int
    name: str
    tensor: Tensor


def _spans(model: nn.Module) -> Iterator[_Span]:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.numel() and not is_traceable_wrapper_subclass(tensor.data):
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            yield _Span(str(tensor.device), start, start + (last + 1) * tensor.element_size(), name, tensor)


def check_optimizers(model: nn.Module, optimizers: Sequence[Any]) -> None:
    """ValueError or TypeError unless these optimizers train just this model."""
    for which, optimizer in enumerate(optimizers):
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"join.optimizer must be a torch optimizer, or a list of them, got {optimizer!r}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise NotImplementedError(
                "LBFGS calls its closure many times a step, and computes gradients where no hook sees them\n"
                "  use an optimizer that needs one gradient a step"
            )
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise TypeError("SparseAdam needs sparse gradients, and models are averaged whole\n  use Adam")
        if any(optimizer is other for other in optimizers[:which]):
            raise ValueError(f"join.optimizer holds {name_of(optimizers, which)} twice")
    ours = {id(parameter) for parameter in model.parameters()}
    held: dict[int, int] = {}
    for which, optimizer in enumerate(optimizers):
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            if id(parameter) not in ours:
                raise ValueError(
                    "join.optimizer holds a parameter that join.model does not have\n"
                    "  give the module that holds all of them"
                )
            if held.setdefault(id(parameter), which) != which:
                raise ValueError(
                    f"{name_of(optimizers, held[id(parameter)])} and {name_of(optimizers, which)} "
                    "hold the same parameter"
                )
    _check_all_held(model, held, optimizers)


def _check_all_held(model: nn.Module, held: dict[int, int], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        whose = "join.optimizer" if len(optimizers) == 1 else "no optimizer of join.optimizer"
        verb = "does not hold" if len(optimizers) == 1 else "holds"
        raise ValueError(
            f"{whose} {verb} parameter {missing[0]}{more}, which would train\n"
            "  give all optimizers: fs.join(model, [muon, adamw], strategy); or freeze it: requires_grad_(False)"
        )


def check_weights_of_its_own(optimizers: Sequence[torch.optim.Optimizer], strategy: str, *, equal_steps: bool) -> None:
    """ValueError for a schedule-free optimizer where nodes take different steps.

    It evaluates at other weights than it trains, and these stand in its state, which no strategy averages.
    """
    for which, optimizer in enumerate(optimizers):
        switches = all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))
        if switches and not equal_steps:
            raise ValueError(
                f"{name_of(optimizers, which)} keeps weights of its own for evaluation (train() and eval()), which "
                f"{strategy} does not average: nodes would evaluate different models\n"
                "  use DataParallel(), whose nodes take the same steps, or an optimizer with a schedule"
            )


joined: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()
"""Models of loops that are joined now, each with the group of its island, if it has one."""


def refuse_ddp(module: nn.Module, arguments: Any) -> None:
    """Before every forward pass: RuntimeError if a DistributedDataParallel is around the model after all.

    A Trainer that finds torchrun's variables wraps the model it was given when training begins.
    """
    # A copy of a joined model carries this hook, and is free to do as it likes.
    wrapper: Any = DistributedDataParallel._active_ddp_module
    if wrapper is None or module not in joined:
        return
    if joined[module] is not None:
        island_members.check_ddp(wrapper, joined[module], "this model")
        return
    raise RuntimeError(
        "this model runs inside DistributedDataParallel, which averages gradients at every step beneath the "
        "strategy\n  switch that off where it was wrapped (a Trainer under torchrun, accelerate)"
    )
