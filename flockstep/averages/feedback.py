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

from flockstep.averages.averages import mean_of_chunks
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
        self._left: Tensor | None = None

    def encode(self, v: Tensor) -> Message:
        """The message for ``v`` and what was left out before. If it cannot be coded, the residual stays."""
        message = self.propose(v)
        self.settle()
        return message

    def propose(self, v: Tensor) -> Message:
        """The same, but the residual stays until ``settle``: a checkpoint in between knows of no message yet."""
        wanted = v + self.residual
        short = wanted.to(v.dtype)
        message = self._codec.encode(short, self._node.rng)
        self.sent = self._codec.decode(message, short)
        self._left = wanted.sub_(self.sent)
        return message

    def settle(self) -> None:
        """The message has arrived."""
        if self._left is not None:
            self.residual.copy_(self._left)
            self._left = None


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
        """Two exchanges per round, as Coded; one residual per receiver and one for the mean."""
        # From the first moment, not from the first round: a checkpoint may come before it.
        chunks = node.params[: node.trained].tensor_split(node.size)
        streams = [
            Feedback(self.codec, node, chunk, f"{channel}: residual for {peer}") for peer, chunk in enumerate(chunks)
        ]
        streams.append(Feedback(self.codec, node, chunks[node.rank], f"{channel}: residual of the mean"))

        async def mean(v: Tensor) -> Tensor:
            if v.shape != node.params.shape:
                like = f"like the model, of {node.params.numel()} numbers"
                raise ValueError(f"Compensated averages vectors {like}, got {v.numel()} on channel {channel!r}")
            result = await mean_of_chunks(v, node, channel, self.codec, [stream.propose for stream in streams])
            # Only now: a resumed run sends again what was under way.
            for stream in streams:
                stream.settle()
            return result

        return mean
