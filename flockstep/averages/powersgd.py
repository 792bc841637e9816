"""The mean of low-rank sketches (PowerSGD): each matrix of a model as a few columns and a few rows.

For every matrix M_i of node i, with the residual e_i of before added, and Q the rows that were found last time:

    P = orthonormal columns of mean_i (M_i Q)
    Q = mean_i (M_i' P)
    mean = P Q';      e_i <- M_i - P Q'

One step of subspace iteration per round, warm from the round before: for a mean of rank at most ``rank`` it is exact.
Biases and other vectors go as they are, and so does a matrix that is no larger than its sketch. It is an average and
not a codec because coding needs two means.

Vogels, Karimireddy, Jaggi: PowerSGD, NeurIPS 2019, arXiv 1905.13727.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flockstep import check
from flockstep.node import Node
from flockstep.parts.suitability import MODELS
from flockstep.strategy import Mean


@dataclass(frozen=True, kw_only=True)
class PowerSGD:
    """The mean of low-rank sketches: a few columns and rows of each matrix; for gradients and changes of whole models.

        P = orthonormal columns of mean_i (M_i Q);   Q <- mean_i (M_i' P);   mean = P Q';   e_i <- M_i - P Q'

    M_i is a matrix of node i's vector with its residual e_i added, Q the rows of the round before. What is left out is
    in e_i, and sent later. Vectors, and matrices no larger than their sketch, go as they are.

    Vogels, Karimireddy, Jaggi: PowerSGD, NeurIPS 2019, arXiv 1905.13727.

    Args:
        rank: Columns, and rows, that are sent of each matrix.

    Example:
        fs.DataParallel(average=fs.averages.PowerSGD(rank=2))
    """

    unsuited: ClassVar[dict[str, str]] = {MODELS: "it would leave matrices of low rank of them"}

    rank: int = 1

    def __post_init__(self) -> None:
        check.whole(self, "rank", self.rank)

    def start(self, node: Node, channel: str = "model") -> Mean:
        """Two means per round: columns with all that is no matrix, then rows."""
        # Not in halves: what rounding leaves out is sent later, too, and halves have no orthonormal columns.
        wide = torch.promote_types(node.params.dtype, torch.float32)
        residual = node.keep(f"{channel}: residual", torch.zeros_like(node.params, dtype=wide), own=True)
        sketched = [self._worth_it(tensor) for tensor in node.tensors(node.params)]
        luck = np.random.default_rng(0)
        rows = [
            node.keep(
                f"{channel}: rows {i}",
                torch.from_numpy(luck.standard_normal((_matrix(tensor).shape[1], self.rank))).to(tensor.device, wide),
            )
            for i, tensor in enumerate(node.tensors(node.params))
            if sketched[i]
        ]

        async def mean(v: Tensor) -> Tensor:
            if v.shape != residual.shape:
                like = f"like the model, of {residual.numel()} numbers"
                raise ValueError(f"PowerSGD averages vectors {like}, got {v.numel()} on channel {channel!r}")
            wanted = v + residual
            parts = list(zip(node.tensors(wanted), sketched, strict=True))
            matrices = [_matrix(part) for part, small in parts if small]
            plain = [part.reshape(-1) for part, small in parts if not small]
            columns = [matrix @ q for matrix, q in zip(matrices, rows, strict=True)]
            both = [*columns, *plain]
            arrived = _split(await node.mean(_joined(both), f"{channel}/columns"), both)
            bases = [torch.linalg.qr(column)[0] for column in arrived[: len(columns)]]
            fresh = [matrix.T @ basis for matrix, basis in zip(matrices, bases, strict=True)]
            if fresh:
                found = _split(await node.mean(_joined(fresh), f"{channel}/rows"), fresh)
                for q, better in zip(rows, found, strict=True):
                    q.copy_(better)
            result = torch.zeros_like(wanted)
            sketches, others = iter(zip(bases, rows, strict=True)), iter(arrived[len(columns) :])
            for part, small in zip(node.tensors(result), sketched, strict=True):
                if small:
                    basis, q = next(sketches)
                    part.copy_((basis @ q.T).view_as(part))
                else:
                    part.copy_(next(others).view_as(part))
            torch.sub(wanted, result, out=residual)
            for part, small in zip(node.tensors(residual), sketched, strict=True):
                if not small:
                    part.zero_()
            return result.to(v.dtype)

        return mean

    def _worth_it(self, tensor: Tensor) -> bool:
        matrix = _matrix(tensor)
        return tensor.dim() > 1 and self.rank * sum(matrix.shape) < matrix.numel()


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.reshape(tensor.shape[0], -1) if tensor.dim() > 1 else tensor.reshape(-1, 1)


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _split(vector: Tensor, like: list[Tensor]) -> list[Tensor]:
    parts = torch.split(vector, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
