"""A small GPT, sharded by FSDP2 inside islands of processes, with DiLoCo between them. Needs no files.

    python examples/islands_gpt.py                          # alone: an island of one
    flockstep run --islands 2x2 examples/islands_gpt.py     # two islands of two processes, on this machine
    flockstep run --islands 2x8 --nnodes 2 --rdzv-endpoint first.local:29400 examples/islands_gpt.py    # on each of two
    FLOCKSTEP_ISLANDS=2x2 torchrun --nproc-per-node 4 examples/islands_gpt.py --strategy "CELGC(period=8)"

Inside an island gradients are averaged at every step, over its fast link; between islands one model's bytes travel now
and then. On GPUs each process has one of its own.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import flockstep as fs
from flockstep.texts import parse
from flockstep.workloads.datasets import shakespeare


class Block(nn.Module):
    """Attention and a small net, each added to what came before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.net(self.between(x))


class GPT(nn.Module):
    """Characters, and those that came next, in; how far it was off out."""

    def __init__(self, letters: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Codes of letters and of the next to a mean loss."""
        inside = self.letters(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            inside = block(inside)
        return cross_entropy(self.head(self.last(inside)).flatten(0, 1), y.flatten())


def main() -> None:
    """Train, and say how well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of each island (default: 200)")
    parser.add_argument("--batch", type=int, default=8, help="sequences per step and process (default: 8)")
    parser.add_argument("--length", type=int, default=64, help="characters per sequence (default: 64)")
    parser.add_argument("--width", type=int, default=32, help="numbers per character inside (default: 32)")
    parser.add_argument("--layers", type=int, default=2, help="blocks (default: 2)")
    parser.add_argument("--strategy", default="DiLoCo(period=20)", help="in Python's words (default: %(default)s)")
    parser.add_argument("--resume", type=Path, help="a folder of checkpoints, to go on from, on islands of any size")
    parser.add_argument("--save-every", type=int, help="write one every so many steps")
    parser.add_argument("--out", type=Path, help="a folder to save the model in")
    options = parser.parse_args()

    text = shakespeare()
    letters = {letter: code for code, letter in enumerate(sorted(set(text)))}
    codes = torch.tensor([letters[letter] for letter in text])
    training, validation = codes[: len(codes) * 9 // 10], codes[len(codes) * 9 // 10 :]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    else:
        torch.set_num_threads(1)
    here = fs.place()
    mesh = here.mesh(device)
    torch.manual_seed(0)
    model = GPT(len(letters), options.length, options.width, options.layers).to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def batch(of: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(of) - options.length - 1, (count, 1))
        sequences = of[starts + torch.arange(options.length + 1)].to(device)
        return sequences[:, :-1], sequences[:, 1:]

    # Every process its own data.
    torch.manual_seed(1 + here.process)
    keeping = {"resume": options.resume, "save_every": options.save_every}
    with fs.join(model, optimizer, parse.strategy(options.strategy), **keeping) as node:
        for step in range(node.step_count, options.steps):
            x, y = batch(training, options.batch)
            optimizer.zero_grad()
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            if here.process == 0 and (step + 1) % 50 == 0:
                print(f"step {step + 1}: training loss {loss.item():.3f}", flush=True)
        sent = node.report().bytes_sent
    # All members of an island take part in a forward pass, each with sequences of its own.
    model.eval()
    torch.manual_seed(here.process)
    with torch.no_grad():
        loss = model(*batch(validation, 128))
    dist.all_reduce(loss)
    weights = {name: value.full_tensor().cpu() for name, value in model.state_dict().items()}
    if here.process == 0:
        where = f"{here.islands} island(s) of {here.columns}"
        print(f"validation loss {loss.item() / here.processes:.3f} nats per character on {where}")
        print(f"sent between islands: {sent * here.columns / 1e6:.1f} MB by each, {sent / 1e6:.1f} MB by each process")
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            save_file(weights, options.out / "islands_gpt.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
