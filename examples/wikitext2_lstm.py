"""A word LSTM on WikiText-2 with CELGC: clipped local SGD steps, models averaged every few of them.

    python examples/wikitext2_lstm.py --data DIR                                    # alone; train.txt, valid.txt in DIR
    flockstep run -n 2 examples/wikitext2_lstm.py --lr 20 --gamma 5 --period 8      # FLOCKSTEP_DATA/wikitext-2
    flockstep run -n 2 examples/wikitext2_lstm.py --strategy "DataParallel(clip=ClipStep(gamma=5.0))"
    torchrun --nproc-per-node 2 examples/wikitext2_lstm.py --device cuda

The loop in ``train`` is plain PyTorch and carries the hidden state from window to window, as is usual. Without the
``with`` line in ``main`` it trains alone. CELGC: arXiv 2205.05040.
"""

import argparse
import math
import os
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flockstep as fs
from flockstep.texts import parse
from flockstep.workloads.datasets import data_folder, read_words


def read_options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="folder of train.txt and valid.txt, plain or .gz")
    add("--period", type=int, default=8, help="CELGC: local steps between two averages (default: %(default)s)")
    add("--gamma", type=float, default=5.0, help="CELGC: the length no local step exceeds (default: %(default)s)")
    add("--strategy", help="another strategy than CELGC, e.g. 'LocalSGD(period=8)'")
    add("--lr", type=float, default=20.0, help="learning rate of SGD (default: %(default)s)")
    add("--steps", type=int, default=2000, help="steps of every node (default: %(default)s)")
    add("--batch", type=int, default=20, help="texts read side by side per node (default: %(default)s)")
    add("--length", type=int, default=35, help="words per step (default: %(default)s)")
    add("--width", type=int, default=200, help="of embedding and LSTM (default: %(default)s)")
    add("--layers", type=int, default=2, help="of the LSTM (default: %(default)s)")
    add("--dropout", type=float, default=0.2, help="between layers (default: %(default)s)")
    add("--validate", type=int, default=4000, metavar="N", help="words of valid.txt to validate on; 0 is all")
    add("--device", default="cpu", help="cpu or cuda; each node of a machine takes a GPU of its own")
    add("--seed", type=int, default=0, help="one seed, one outcome (default: %(default)s)")
    add("--threads", type=int, default=1, help="threads torch computes with on each node (default: %(default)s)")
    add("--resume", type=Path, metavar="DIR", help="go on from the newest checkpoint in DIR, if there is one")
    add("--save-every", type=int, metavar="N", help="write a checkpoint into DIR every N steps")
    add("--out", type=Path, default=Path("flockstep-out"), help="folder of the trained model (default: %(default)s)")
    options = parser.parse_args()
    try:
        celgc = f"CELGC(period={options.period}, gamma={options.gamma})"
        options.strategy = parse.strategy(options.strategy or celgc)
    except ValueError as error:
        parser.error(f"--strategy: {error}")
    return options


class WordModel(nn.Module):
    """Embedding, LSTM layers, and logits that reuse the embedding."""

    def __init__(self, words: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout if layers > 1 else 0.0)
        self.logits = nn.Linear(width, words)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        nn.init.zeros_(self.logits.bias)
        self.logits.weight = self.embed.weight

    def forward(self, words: Tensor, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Logits for the word after each of ``words`` (time, batch), and the state after the last."""
        h, hidden = self.lstm(self.drop(self.embed(words)), hidden)
        return self.logits(self.drop(h)), hidden


class Memory:
    """The LSTM's state between two windows. Its ``state_dict`` goes into checkpoints, so that resuming is exact."""

    def __init__(self, layers: int, batch: int, width: int, device: torch.device) -> None:
        self.hidden = (torch.zeros(layers, batch, width, device=device),) * 2

    def forget(self) -> None:
        """Begin a text."""
        self.hidden = torch.zeros_like(self.hidden[0]), torch.zeros_like(self.hidden[1])

    def keep(self, hidden: tuple[Tensor, Tensor]) -> None:
        """Carry a state over, but no gradients beyond it."""
        self.hidden = hidden[0].detach(), hidden[1].detach()

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it."""
        return {"h": self.hidden[0], "c": self.hidden[1]}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up what a checkpoint held."""
        device = self.hidden[0].device
        self.hidden = state["h"].to(device), state["c"].to(device)


class Corpus:
    """WikiText-2 as numbers: this node's stretch of the training text, and the validation text."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        train, validation = (read_words(_file(folder, name)) for name in ("train", "valid"))
        ids = {word: number for number, word in enumerate(dict.fromkeys([*train, *validation]))}
        self.words = len(ids)
        self.shard = torch.tensor(np.array_split([ids[word] for word in train], size)[rank])
        self.validation = torch.tensor([ids[word] for word in validation])


def _file(folder: Path, name: str) -> Path:
    plain = folder / f"{name}.txt"
    return plain if plain.is_file() else plain.with_suffix(".txt.gz")


def columns(words: Tensor, batch: int, device: torch.device) -> Tensor:
    """A text cut into ``batch`` texts of equal length, side by side: (time, batch)."""
    return words[: len(words) // batch * batch].view(batch, -1).t().contiguous().to(device)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    text: Tensor,
    memory: Memory,
    options: argparse.Namespace,
    first: int,
) -> None:
    """A plain loop: nothing in it knows of other nodes."""
    windows = (len(text) - 1) // options.length
    rank, told = fs.rank(), max(1, options.steps // 20)
    with Progress(console=Console(stderr=True), disable=rank != 0) as bar:
        task = bar.add_task("training", total=options.steps, completed=first)
        for step in range(first, options.steps):
            at = step % windows * options.length
            if at == 0:
                memory.forget()
            optimizer.zero_grad()
            logits, hidden = model(text[at : at + options.length], memory.hidden)
            loss = cross_entropy(logits.flatten(0, 1), text[at + 1 : at + 1 + options.length].flatten())
            loss.backward()
            optimizer.step()
            memory.keep(hidden)
            bar.update(task, completed=step + 1)
            if rank == 0 and (step + 1) % told == 0:
                bar.console.print(f"step {step + 1} of {options.steps}: perplexity {math.exp(loss.item()):.0f}")


@torch.no_grad()
def perplexity(model: nn.Module, words: Tensor, options: argparse.Namespace, device: torch.device) -> float:
    """exp of the mean loss over a text that nobody trained on."""
    model.eval()
    text = columns(words[: options.validate or None], 10, device)
    memory = Memory(options.layers, 10, options.width, device)
    total = 0.0
    for at in range(0, len(text) - 1, options.length):
        target = text[at + 1 : at + 1 + options.length]
        logits, hidden = model(text[at : at + len(target)], memory.hidden)
        memory.keep(hidden)
        total += cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum").item()
    return math.exp(total / text[1:].numel())


def pick_device(name: str) -> torch.device:
    """The device asked for; of several GPUs, this node's own."""
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device(name)


def main() -> None:
    """Build everything as for one machine; the ``with`` line makes it a flock."""
    options = read_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    device = pick_device(options.device)
    corpus = Corpus(options.data or data_folder("wikitext-2"), fs.rank(), fs.size())
    text = columns(corpus.shard, options.batch, device)
    model = WordModel(corpus.words, options.width, options.layers, options.dropout).to(device)
    memory = Memory(options.layers, options.batch, options.width, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    # Another dropout on every node.
    torch.manual_seed(options.seed * fs.size() + fs.rank())

    resume, every = options.resume, options.save_every
    with fs.join(model, optimizer, options.strategy, resume=resume, save_every=every, stateful=[memory]) as node:
        train(model, optimizer, text, memory, options, node.step_count)
        node.meet()
        if node.rank == 0:
            average = node.average_model()
            print(f"validation perplexity {perplexity(average, corpus.validation, options, device):.1f}")
            options.out.mkdir(parents=True, exist_ok=True)
            save_model(average, str(options.out / "wikitext2_lstm.safetensors"))
            print(f"model: {options.out / 'wikitext2_lstm.safetensors'}")
            print(f"sent {node.report().bytes_sent / 1e6:.1f} MB per node")


if __name__ == "__main__":
    main()
