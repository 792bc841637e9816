"""A small GPT with Muon for its matrices and AdamW for the rest, trained alone or by a flock. Needs no files.

    python examples/muon_gpt.py                                                     # alone
    flockstep run -n 2 examples/muon_gpt.py                                         # two nodes of this machine
    torchrun --nproc-per-node 2 examples/muon_gpt.py --strategy DataParallel        # the same under torchrun
    flockstep run -n 2 examples/muon_gpt.py --resume checkpoints --save-every 50    # goes on where it was stopped

Two optimizers of one model: ``fs.join(model, [muon, adamw], strategy)``. Muon computes in bfloat16, which processors
without instructions for it do slowly.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
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
    """Characters in, what may come next out."""

    def __init__(self, letters: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Codes of letters to scores of the next."""
        return self.head(self.blocks(self.letters(x) + self.places.weight[: x.shape[1]]))


def main() -> None:
    """Train, and say how well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of each node (default: 200)")
    parser.add_argument("--batch", type=int, default=16, help="sequences per step and node (default: 16)")
    parser.add_argument("--length", type=int, default=64, help="characters per sequence (default: 64)")
    parser.add_argument("--width", type=int, default=32, help="numbers per character inside (default: 32)")
    parser.add_argument("--layers", type=int, default=2, help="blocks (default: 2)")
    parser.add_argument("--strategy", default="LocalSGD(period=8)", help="in Python's words (default: %(default)s)")
    parser.add_argument("--resume", type=Path, help="a folder of checkpoints, to go on from")
    parser.add_argument("--save-every", type=int, help="write one every so many steps")
    parser.add_argument("--out", type=Path, help="a folder to save the model in")
    options = parser.parse_args()

    text = shakespeare()
    letters = {letter: code for code, letter in enumerate(sorted(set(text)))}
    codes = torch.tensor([letters[letter] for letter in text])
    training, validation = codes[: len(codes) * 9 // 10], codes[len(codes) * 9 // 10 :]
    torch.manual_seed(fs.rank())
    torch.set_num_threads(1)
    model = GPT(len(letters), options.length, options.width, options.layers)
    # Muon is for matrices inside; embeddings, the head, biases and norms are AdamW's, as its author advises.
    inside = [p for p in model.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in inside}
    muon = torch.optim.Muon(inside, lr=0.02, momentum=0.95)
    adamw = torch.optim.AdamW([p for p in model.parameters() if id(p) not in chosen], lr=3e-3)
    falls = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps) for optimizer in (muon, adamw)]

    def batch(of: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(of) - options.length - 1, (count, 1))
        sequences = of[starts + torch.arange(options.length + 1)]
        return sequences[:, :-1], sequences[:, 1:]

    strategy = parse.strategy(options.strategy)
    keeping = {"stateful": falls, "resume": options.resume, "save_every": options.save_every}
    with fs.join(model, [muon, adamw], strategy, **keeping) as node:
        for step in range(node.step_count, options.steps):
            x, y = batch(training, options.batch)
            model.zero_grad()
            loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            muon.step()
            adamw.step()
            for fall in falls:
                fall.step()
            if node.rank == 0 and (step + 1) % 50 == 0:
                print(f"step {step + 1}: training loss {loss.item():.3f}", flush=True)
    if node.rank == 0:
        model.eval()
        torch.manual_seed(0)
        with torch.no_grad():
            x, y = batch(validation, 256)
            loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
        print(f"validation loss {loss.item():.3f} nats per character on {fs.size()} node(s)")
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            save_file(model.state_dict(), options.out / "muon_gpt.safetensors")


if __name__ == "__main__":
    main()
