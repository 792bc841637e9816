"""The mean in few bits: chunks in, means out, each of them coded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from flockstep.averages.chunks import mean_of_chunks
from flockstep.codecs.codec import Codec
from flockstep.message import Message
from flockstep.node import Node
from flockstep.parts.suitability import MEANS, codec_for, unsuited
from flockstep.strategy import Mean


@dataclass(frozen=True, kw_only=True)
class Coded:
    """The mean of all nodes' vectors in few bits: what ``Exact`` sends, each chunk coded.

        m_k = Q(mean_i Q(v_i,k))                   chunk k of the mean, taken by node k; Q: coded and decoded

    Node k gets chunk k from every node, coded, averages in full precision, and gives the coded mean to every node. All
    nodes decode the same messages, so all hold the same result.

    Args:
        codec: How vectors become bytes (see ``fs.codecs``). Not ``Modular``, whose receivers must be able to ask again;
            ``TopK`` for gradients and changes only, and better in ``Compensated``.

    Example:
        fs.LocalSGD(period=8, average=fs.averages.Coded(codec=fs.codecs.Cast(dtype="bf16")))
    """

    codec: Codec

    def __post_init__(self) -> None:
        codec_for(self, self.codec, MEANS, such_as="Cast()", instead="Stochastic(bits=8) or Cast()")

    @property
    def unsuited(self) -> Mapping[str, str]:
        """What its codec is not for."""
        return unsuited(self.codec)

    def start(self, node: Node, channel: str = "model") -> Mean:
        """Two exchanges per round: chunks in, means out."""
        coder = _Plain(self.codec, node)

        async def mean(v: Tensor) -> Tensor:
            return await mean_of_chunks(v, node, channel, coder)

        return mean


@dataclass(frozen=True)
class _Plain:
    """Codes chunks and means alike, and keeps nothing."""

    codec: Codec
    node: Node

    def begin(self, own: slice, takers: int) -> None:
        pass

    def encode_chunk(self, chunk: Tensor, begin: int) -> Message:
        return self.codec.encode(chunk, self.node.rng)

    def encode_mean(self, mean: Tensor, begin: int) -> Message:
        return self.codec.encode(mean, self.node.rng)

    def settle(self, brought: int) -> None:
        pass
