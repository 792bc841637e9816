"""A character LSTM on Shakespeare in a plain PyTorch loop, trained alone or by a flock. Needs no files.

    python examples/shakespeare.py                                                  # alone
    flockstep run -n 2 examples/shakespeare.py                                      # two nodes of this machine
    torchrun --nproc-per-node 2 examples/shakespeare.py --strategy DataParallel     # the same under torchrun
    flockstep run -n 2 examples/shakespeare.py --resume checkpoints --save-every 50 # goes on where it was stopped

The loop in ``train`` is plain PyTorch. Without the ``with`` line in ``main`` it trains alone.
"""

import argparse
import gc
import json
import os
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flockstep as fs
from flockstep.texts import parse
from flockstep.workloads.datasets import shakespeare


def read_options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--strategy", default="CELGC(period=8, gamma=1.0)", help="how nodes train together, e.g. 'LocalSGD(period=4)'")
    add("--ddp", action="store_true", help="torch's DistributedDataParallel instead of a strategy, to compare with")
    add("--steps", type=int, default=500, help="steps of every node (default: %(default)s)")
    add("--batch", type=int, default=16, help="windows of text per step and node (default: %(default)s)")
    add("--length", type=int, default=64, help="characters per window (default: %(default)s)")
    add("--hidden", type=int, default=128, help="width of the LSTM (default: %(default)s)")
    add("--lr", type=float, default=4.0, help="learning rate of SGD (default: %(default)s)")
    add("--seed", type=int, default=0, help="one seed, one outcome (default: %(default)s)")
    add("--threads", type=int, default=1, help="threads torch computes with on each node (default: %(default)s)")
    add("--resume", type=Path, metavar="DIR", help="go on from the newest checkpoint in DIR, if there is one")
    add("--save-every", type=int, metavar="N", help="write a checkpoint into DIR every N steps")
    add("--out", type=Path, default=Path("flockstep-out"), help="folder of the trained model (default: %(default)s)")
    add("--losses", type=Path, metavar="FILE", help="write every step's loss as JSON; node 1's go to FILE-1, and so on")
    options = parser.parse_args()
    try:
        options.strategy = parse.strategy(options.strategy)
    except ValueError as error:
        parser.error(f"--strategy: {error}")
    return options


class CharModel(nn.Module):
    """Embedding, LSTM, and logits of the next character."""

    def __init__(self, characters: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, 32)
        self.lstm = nn.LSTM(32, hidden, batch_first=True)
        self.logits = nn.Linear(hidden, characters)

    def forward(self, text: Tensor) -> Tensor:
        """Logits for the character after each of ``text`` (batch, time)."""
        return self.logits(self.lstm(self.embed(text))[0])


class Text:
    """Shakespeare as numbers: this node's stretch of the first nine tenths, and the last tenth to validate on."""

    def __init__(self, rank: int, size: int) -> None:
        characters, numbers = np.unique(np.array(list(shakespeare())), return_inverse=True)
        self.characters = len(characters)
        train, self.validation = torch.from_numpy(numbers).split([len(numbers) * 9 // 10, -(-len(numbers) // 10)])
        self.shard = train.tensor_split(size)[rank]

    def windows(self, text: Tensor, starts: np.ndarray, length: int) -> tuple[Tensor, Tensor]:
        """Windows of a text, and the same windows one character on."""
        both = text[torch.from_numpy(starts[:, None] + np.arange(length + 1))]
        return both[:, :-1], both[:, 1:]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy per character, in nats."""
    return cross_entropy(model(x).flatten(0, 1), y.flatten())


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, text: Text, options: argparse.Namespace, first: int
) -> list[float]:
    """A plain loop: nothing in it knows of other nodes. Gives back the loss of every step."""
    losses: list[float] = []
    rank, told = fs.rank(), max(1, options.steps // 10)
    with Progress(console=Console(stderr=True), disable=rank != 0) as bar:
        task = bar.add_task("training", total=options.steps, completed=first)
        for step in range(first, options.steps):
            # Drawn anew from the step's number, so that a resumed run sees the data it would have seen.
            rng = np.random.default_rng((options.seed, rank, step))
            starts = rng.integers(len(text.shard) - options.length, size=options.batch)
            x, y = text.windows(text.shard, starts, options.length)
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            bar.update(task, completed=step + 1)
            if rank == 0 and (step + 1) % told == 0:
                bar.console.print(f"step {step + 1} of {options.steps}: loss {losses[-1]:.3f}")
    return losses


@torch.no_grad()
def validate(model: nn.Module, text: Text, options: argparse.Namespace) -> float:
    """The loss on windows spread evenly over the text that nobody trained on."""
    starts = np.linspace(0, len(text.validation) - options.length - 1, 256).astype(int)
    return loss_of(model.eval(), *text.windows(text.validation, starts, options.length)).item()


def train_by_ddp(
    model: nn.Module, optimizer: torch.optim.Optimizer, text: Text, options: argparse.Namespace
) -> list[float]:
    """The same training by torch itself: gradients averaged at every step."""
    if "RANK" not in os.environ:
        raise SystemExit("--ddp compares real processes: start this with `flockstep run -n 2` or torchrun")
    torch.distributed.init_process_group("gloo")
    try:
        return train(nn.parallel.DistributedDataParallel(model), optimizer, text, options, 0)
    finally:
        # The wrapper must be gone before its group: the last to hold a group ends its threads, and the wrapper does so
        # with the interpreter locked, which one of them may be waiting for (seen with torch 2.13: it hangs at exit).
        gc.collect()
        torch.distributed.destroy_process_group()


def main() -> None:
    """Build everything as for one machine; the ``with`` line makes it a flock."""
    options = read_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    text = Text(fs.rank(), fs.size())
    model = CharModel(text.characters, options.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    print(f"node {fs.rank()} of {fs.size()} is process {os.getpid()}", flush=True)

    if options.ddp:
        finish(model, text, options, train_by_ddp(model, optimizer, text, options))
        return
    with fs.join(model, optimizer, options.strategy, resume=options.resume, save_every=options.save_every) as node:
        losses = train(model, optimizer, text, options, node.step_count)
        node.meet()
        average = node.average_model() if node.rank == 0 else model
    finish(average, text, options, losses)
    if node.rank == 0:
        print(f"sent {node.report().bytes_sent / 1e6:.1f} MB per node")


def finish(model: nn.Module, text: Text, options: argparse.Namespace, losses: list[float]) -> None:
    """Node 0 validates and saves the model; every node writes its losses."""
    if options.losses is not None:
        path = options.losses.with_name(f"{options.losses.name}-{fs.rank()}")
        path.write_text(json.dumps(losses))
    if fs.rank() == 0:
        print(f"validation loss {validate(model, text, options):.4f} nats per character")
        options.out.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), options.out / "shakespeare.safetensors")
        print(f"model: {options.out / 'shakespeare.safetensors'}")


if __name__ == "__main__":
    main()
