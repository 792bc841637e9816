"""Error feedback: what a codec leaves out of a message goes into the next one.

    p = v + e;   m = Enc(p);   e <- p - Dec(m)

All that was ever sent, and the residual e, add up to all that was ever put in: with a codec that leaves out most, or is
wrong on average, nothing is lost, only late. For vectors whose sum matters, such as gradients and changes; not for
models, of which each replaces the last.
Seide, Fu, Droppo, Li, Yu: 1-bit SGD, Interspeech 2014. Karimireddy, Rebjock, Stich, Jaggi: error feedback fixes
SignSGD, ICML 2019, arXiv 1901.09847. There and back: Tang et al., DoubleSqueeze, ICML 2019, arXiv 1905.05957.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flockstep.averages.chunks import mean_of_chunks
from flockstep.codecs.codec import Codec
from flockstep.message import Message
from flockstep.node import Node
from flockstep.parts.suitability import CHANGES, MEANS, codec_for, unsuited
from flockstep.strategy import Mean


class Feedback:
    """Error feedback for one stream of vectors from one node: what the codec leaves out is in the next message.

        p = v + e;   m = Enc(p);   e <- p - Dec(m)

    For strategies of your own that send gradients or changes. ``residual`` is e, and a checkpoint keeps it; ``sent`` is
    what receivers read in the latest message.

    Seide, Fu, Droppo, Li, Yu: 1-bit SGD, Interspeech 2014. Karimireddy, Rebjock, Stich, Jaggi: error feedback fixes
    SignSGD, ICML 2019, arXiv 1901.09847.

    Args:
        codec: How vectors become bytes (see ``fs.codecs``).
        node: The node that sends; its random numbers are the codec's.
        like: A vector with the shape, dtype and device of those to come.
        name: Under which the residual is kept. No other stream of the node may have it.

    Example:
        feedback = fs.averages.Feedback(fs.codecs.TopK(fraction=0.01), node, node.params)
        node.send(peer, feedback.encode(change))
    """

    sent: Tensor
    """What receivers read in the latest message."""

    def __init__(self, codec: Codec, node: Node, like: Tensor, name: str = "residual") -> None:
        self._codec, self._node = codec, node
        # Not in halves: what rounding to them leaves out is fed back as well.
        wide = torch.promote_types(like.dtype, torch.float32)
        self.residual = node.keep(name, torch.zeros_like(like, dtype=wide), own=True)
        self.sent = torch.zeros_like(like)
        self._left: dict[int, Tensor] = {}
        """What messages under way leave out, by where the vectors of them begin."""

    def encode(self, v: Tensor) -> Message:
        """The message for ``v`` and what was left out before. If it cannot be coded, the residual stays."""
        message = self.propose(v)
        self.settle()
        return message

    def propose(self, v: Tensor, begin: int = 0) -> Message:
        """The same, but the residual stays until ``settle``: a checkpoint in between knows of no message yet.

        ``v`` may be a part of the vector, which begins somewhere in it.
        """
        wanted = v + self._part(begin, v.numel())
        short = wanted.to(v.dtype)
        message = self._codec.encode(short, self._node.rng)
        self.sent = self._codec.decode(message, short)
        self._left[begin] = wanted.sub_(self.sent)
        return message

    def settle(self) -> None:
        """The messages have arrived."""
        for begin, left in self._left.items():
            self._part(begin, left.numel()).copy_(left)
        self.drop()

    def drop(self) -> None:
        """The messages have come to nothing: the residual stays as it is."""
        self._left.clear()

    def _part(self, begin: int, count: int) -> Tensor:
        return self.residual[begin : begin + count]


@dataclass(frozen=True, kw_only=True)
class Compensated:
    """The mean in few bits as ``Coded`` takes it, with error feedback: for gradients and changes of whole models.

        p = v + e;   m = Enc(p);   e <- p - Dec(m)

    This happens twice: every node feeds back what it left out of the chunks it gave to others, and of the mean of its
    own chunk. Residuals e are in the units of the vector: with a falling learning rate, old gradients come in at
    today's.

    Seide, Fu, Droppo, Li, Yu: 1-bit SGD, Interspeech 2014. Tang et al.: DoubleSqueeze, ICML 2019, arXiv 1905.05957.

    Args:
        codec: How vectors become bytes (see ``fs.codecs``). Not ``Modular``.

    Example:
        fs.DataParallel(average=fs.averages.Compensated(codec=fs.codecs.TopK(fraction=0.01)))
    """

    # A class and not a flag of Coded: it has state, and suits other vectors. Not a codec around a codec either: codecs
    # are values without state, and there would be no telling which stream a call belongs to.

    codec: Codec

    def __post_init__(self) -> None:
        codec_for(
            self, self.codec, CHANGES, MEANS, such_as="TopK(fraction=0.01)", instead="Stochastic(bits=4) or TopK()"
        )

    @property
    def unsuited(self) -> Mapping[str, str]:
        """What its codec is not for."""
        return unsuited(self.codec)

    def start(self, node: Node, channel: str = "model") -> Mean:
        """Two exchanges per round, as Coded; a residual of what is given to others, and one of the mean."""
        # From the first moment, not from the first round: a checkpoint may come before it.
        coder = _TwoFeedbacks(self.codec, node, channel)

        async def mean(v: Tensor) -> Tensor:
            if v.shape != node.params.shape:
                like = f"like the model, of {node.params.numel()} numbers"
                raise ValueError(f"Compensated averages vectors {like}, got {v.numel()} on channel {channel!r}")
            return await mean_of_chunks(v, node, channel, coder)

        return mean


class _TwoFeedbacks:
    """What a node has left out of what it gave to others, and of the means that it took.

    In an elastic run the chunk whose mean it takes moves. What it has left out of other means then goes to those who
    take them now, with what else it gives them.
    """

    def __init__(self, codec: Codec, node: Node, channel: str) -> None:
        self.codec = codec
        whole = node.params[: node.trained]
        self._begin, own = 0, whole
        if not node.elastic:
            self._begin = sum(part.numel() for part in whole.tensor_split(node.size)[: node.rank])
            own = whole.tensor_split(node.size)[node.rank]
        self._of_chunks = Feedback(codec, node, whole, f"{channel}: residual")
        self._of_means = Feedback(codec, node, own, f"{channel}: residual of the mean")
        self._own = slice(self._begin, self._begin + own.numel())
        self._handed_on: list[tuple[Tensor, int]] = []

    def begin(self, own: slice, takers: int) -> None:
        self._of_chunks.drop()
        self._of_means.drop()
        if own != self._own:
            self._own = own
            self._hand_on(takers)

    def _hand_on(self, takers: int) -> None:
        of_means = self._of_means.residual
        others = of_means.clone()
        others[self._own] = 0
        # What a node brings counts as one of so many, as far as is known yet.
        self._of_chunks.residual.add_(others, alpha=takers)
        of_means.sub_(others)
        self._handed_on.append((others, takers))

    def encode_chunk(self, chunk: Tensor, begin: int) -> Message:
        return self._of_chunks.propose(chunk, begin)

    def encode_mean(self, mean: Tensor, begin: int) -> Message:
        return self._of_means.propose(mean, begin - self._begin)

    def settle(self, brought: int) -> None:
        self._of_chunks.settle()
        self._of_means.settle()
        for others, takers in self._handed_on:
            self._of_chunks.residual.add_(others, alpha=brought - takers)
        self._handed_on.clear()
