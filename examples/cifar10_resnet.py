"""ResNet-20 on CIFAR-10 (a subset of 20,000 training and 4,000 test images), alone or by a flock.

    python examples/cifar10_resnet.py --data DIR                                    # alone; DIR has the two .npz files
    flockstep run -n 2 examples/cifar10_resnet.py                                   # FLOCKSTEP_DATA/cifar10
    flockstep run -n 4 examples/cifar10_resnet.py --device cuda --steps 8000        # one GPU per node
    torchrun --nproc-per-node 2 examples/cifar10_resnet.py --strategy DataParallel

The loop in ``train`` is plain PyTorch: SGD with momentum, a cosine schedule, random crops and flips. Without the
``with`` line in ``main`` it trains alone. Batch-norm statistics are averaged together with the weights.
"""

import argparse
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, pad, relu

import flockstep as fs
from flockstep.texts import parse
from flockstep.workloads.datasets import data_folder

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def read_options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="folder of cifar10_train_*.npz and cifar10_test_*.npz")
    add("--strategy", default="LocalSGD(period=8)", help="how nodes train together (default: %(default)s)")
    add("--steps", type=int, default=4000, help="steps of every node (default: %(default)s)")
    add("--batch", type=int, default=64, help="images per step and node (default: %(default)s)")
    add("--lr", type=float, default=0.1, help="first learning rate, falling to 0 as a cosine (default: %(default)s)")
    add("--momentum", type=float, default=0.9, help="of SGD (default: %(default)s)")
    add("--decay", type=float, default=5e-4, help="weight decay (default: %(default)s)")
    add("--validate", type=int, default=4000, metavar="N", help="test images to validate on (default: %(default)s)")
    add("--device", default="cpu", help="cpu or cuda; each node of a machine takes a GPU of its own")
    add("--seed", type=int, default=0, help="one seed, one outcome (default: %(default)s)")
    add("--threads", type=int, default=1, help="threads torch computes with on each node (default: %(default)s)")
    add("--resume", type=Path, metavar="DIR", help="go on from the newest checkpoint in DIR, if there is one")
    add("--save-every", type=int, metavar="N", help="write a checkpoint into DIR every N steps")
    add("--out", type=Path, default=Path("flockstep-out"), help="folder of the trained model (default: %(default)s)")
    options = parser.parse_args()
    try:
        options.strategy = parse.strategy(options.strategy)
    except ValueError as error:
        parser.error(f"--strategy: {error}")
    return options


class Block(nn.Module):
    """Two convolutions and a way around them, which only drops pixels and adds empty channels."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride, self.more = after // before, after - before
        self.conv1 = nn.Conv2d(before, after, 3, self.stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        """Both ways, added."""
        h = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        around = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return relu(h + around)


class ResNet20(nn.Module):
    """Nine blocks of two layers, a first and a last one (He et al. 2015, section 4.2)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in pairwise(widths)))
        self.logits = nn.Linear(64, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits of ten classes."""
        h = self.blocks(relu(self.norm(self.conv(images))))
        return self.logits(avg_pool2d(h, 8).flatten(1))


class Images:
    """Images and labels, and a fixed order of those that belong to one node."""

    def __init__(self, path: Path, device: torch.device, rank: int = 0, size: int = 1, most: int | None = None) -> None:
        packed = np.load(path, allow_pickle=False)
        # The file holds differences of neighbours and of channels, which pack better.
        pixels = packed["residual"].cumsum(3, dtype=np.uint8).cumsum(2, dtype=np.uint8)
        pixels[:, 0] += pixels[:, 1]
        pixels[:, 2] += pixels[:, 1]
        mine = np.random.default_rng(0).permutation(len(pixels))[:most][rank::size]
        self.pixels = torch.from_numpy(pixels[mine]).to(device)
        self.labels = torch.from_numpy(packed["labels"][mine].astype(np.int64)).to(device)
        self._mean, self._std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Some of them, at mean 0 and deviation 1."""
        return (self.pixels[rows] / 255 - self._mean) / self._std, self.labels[rows]

    def batch(self, step: int, size: int, seed: int) -> Tensor:
        """The rows of one step: every image once in an epoch, in another order each."""
        steps = len(self) // size
        order = np.random.default_rng((seed, fs.rank(), step // steps)).permutation(len(self))
        return torch.from_numpy(order[step % steps * size :][:size])


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each by up to four pixels, and mirror every other one."""
    count = len(images)
    right, down = torch.randint(9, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    places = torch.arange(32)
    across = torch.where(mirrored, 31 - places, places) + right
    which = torch.arange(count).view(-1, 1, 1)
    wide = pad(images, (4, 4, 4, 4)).permute(0, 2, 3, 1)
    return wide[which, (places + down)[:, :, None], across[:, None, :]].permute(0, 3, 1, 2)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    images: Images,
    options: argparse.Namespace,
    first: int,
) -> None:
    """A plain loop: nothing in it knows of other nodes."""
    rank, told = fs.rank(), max(1, options.steps // 20)
    with Progress(console=Console(stderr=True), disable=rank != 0) as bar:
        task = bar.add_task("training", total=options.steps, completed=first)
        for step in range(first, options.steps):
            # Luck from the step's number, so that a resumed run sees what it would have seen.
            luck = torch.Generator().manual_seed((options.seed * 1000 + rank) * 10**7 + step)
            x, y = images.take(images.batch(step, options.batch, options.seed))
            optimizer.zero_grad()
            loss = cross_entropy(model(augment(x, luck)), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            bar.update(task, completed=step + 1)
            if rank == 0 and (step + 1) % told == 0:
                bar.console.print(f"step {step + 1} of {options.steps}: loss {loss.item():.3f}")


@torch.no_grad()
def accuracy(model: nn.Module, images: Images) -> float:
    """The share of test images named rightly."""
    model.eval()
    right = 0
    for rows in torch.arange(len(images)).split(250):
        x, y = images.take(rows)
        right += int((model(x).argmax(1) == y).sum())
    return right / len(images)


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
    device, folder = pick_device(options.device), options.data or data_folder("cifar10")
    images = Images(next(folder.glob("cifar10_train_*.npz")), device, fs.rank(), fs.size())
    model = ResNet20().to(device)
    optimizer = torch.optim.SGD(model.parameters(), options.lr, options.momentum, weight_decay=options.decay)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)

    resume, every = options.resume, options.save_every
    with fs.join(model, optimizer, options.strategy, resume=resume, save_every=every, stateful=[scheduler]) as node:
        train(model, optimizer, scheduler, images, options, node.step_count)
        node.meet()
        if node.rank == 0:
            average = node.average_model()
            test = Images(next(folder.glob("cifar10_test_*.npz")), device, most=options.validate)
            print(f"test accuracy {accuracy(average, test):.1%} of {len(test)} images")
            options.out.mkdir(parents=True, exist_ok=True)
            save_file(average.state_dict(), options.out / "cifar10_resnet.safetensors")
            print(f"model: {options.out / 'cifar10_resnet.safetensors'}")
            print(f"sent {node.report().bytes_sent / 1e6:.1f} MB per node")


if __name__ == "__main__":
    main()
