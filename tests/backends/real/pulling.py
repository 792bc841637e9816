"""A one-sided strategy as small as they come."""

from dataclasses import dataclass

import numpy as np
import torch

import flockstep as fs
from flockstep.codecs.raw import Raw


@dataclass(frozen=True, kw_only=True)
class Pull:
    """Every few steps, go half the way to the model of somebody who lives; if nobody answers, go on alone."""

    one_sided = True
    period: int = 2

    async def run(self, node):
        x = node.params
        node.answer("model", lambda peer, message: Raw().encode(x, np.random.default_rng(0)))
        nothing = Raw().encode(torch.zeros(1), np.random.default_rng(0))
        async for k in node.steps():
            await node.step(await node.gradient(x))
            if k % self.period == 0 and node.peers():
                peer = int(node.rng.choice(node.peers()))
                try:
                    theirs = Raw().decode(await node.ask(peer, "model", nothing), x)
                except fs.LostPeer as error:
                    assert f"node {peer}" in str(error)
                    node.count("lost")
                else:
                    node.count("pulled")
                    x.add_(theirs - x, alpha=0.5)
