"""How heavy the tails of your own gradient noise are.

Where P(|noise| > u) falls like u^-index, an index up to 2 means infinite variance, and one up to 1 means no mean.
Sooner or later a step along a raw gradient then goes far astray, and a larger batch helps little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from flockstep import check
from flockstep.vector import trainable

__all__ = ["TailIndex", "gradient_samples", "tail_index"]

Numbers = NDArray[np.float64]

_LEAST, _MOST, _SHOWN = 0.005, 0.1, 0.2
_REPEATS, _NUMBERS, _STRETCH = 20, 50, 20
_FIX = "\n  take more gradients at the same point: gradient_samples(model, losses) over more batches"


@dataclass(frozen=True, kw_only=True)
class TailIndex:
    """What ``tail_index`` found; print it for a verdict in words.

    Args:
        index: P(|noise| > u) falls like u^-index: up to 2 the variance is infinite, up to 1 there is no mean.
        error: One standard error, index / sqrt(k), if the numbers are independent.
        k: How many of the largest numbers the index is from.
        count: Of how many numbers in all.
        dropped: Coordinates left out: in half of the repeats or more they had the same value.
        curve: Hill's plot: some k up to a fifth of the numbers, and the index from each.
        sizes: For the same k, the size that k numbers exceed, in median deviations of their coordinate.
    """

    index: float
    error: float
    k: int
    count: int
    dropped: int
    curve: tuple[NDArray[np.int64], Numbers] = field(repr=False, compare=False)
    sizes: Numbers = field(repr=False, compare=False)

    @property
    def verdict(self) -> str:
        """One sentence. It takes sides only where two standard errors leave no other."""
        found, margin = f"tail index {self.index:.2f} +- {self.error:.2f}", 2 / math.sqrt(self.k)
        if self.index * (1 + margin) < 1:
            return (
                f"The noise looks as if it had not even a mean ({found}): clip gradients before anything averages "
                "them, or use SClipEF or GTNSGDm."
            )
        if self.index * (1 + margin) < 2:
            return (
                f"The noise looks as if it had infinite variance ({found}): use a method for heavy tails, SClipEF or "
                "GTNSGDm, or clip gradients (ClipNorm)."
            )
        if self.index * (1 - margin) > 2:
            return f"The noise looks as if its variance were finite ({found}): heavy tails are not your problem."
        return f"These numbers cannot tell whether the noise has a finite variance ({found}): take more of them."

    def __str__(self) -> str:
        left_out = f"; {self.dropped:,} coordinates that hardly move left out" if self.dropped else ""
        return f"{self.verdict} From the {self.k:,} largest of {self.count:,} numbers{left_out}."

    def plot(self, path: str | Path) -> Path:
        """Hill's plot, and the survival of sizes with the fitted slope, as a picture; gives the path back."""
        # The object interface draws without a display and leaves the user's own pyplot figures alone.
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10.5, 4), layout="constrained")
        hill, survival = figure.subplots(1, 2)
        self._draw_hill(hill)
        self._draw_survival(survival)
        for panel in (hill, survival):
            panel.grid(alpha=0.3)
            panel.legend(fontsize=8)
        figure.suptitle(f"tail index {self.index:.2f} +- {self.error:.2f}", fontsize=11)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
        return path

    def _draw_hill(self, panel: Any) -> None:
        # Where the largest numbers are all alike the index is infinite, and there is nothing to draw.
        finite = np.isfinite(self.curve[1])
        ks, indices = self.curve[0][finite], self.curve[1][finite]
        band = 2 * indices / np.sqrt(ks)
        panel.fill_between(ks, indices - band, indices + band, alpha=0.2, label="two standard errors")
        panel.plot(ks, indices, label="index from the k largest")
        panel.axvline(self.k, color="black", linewidth=1, linestyle="--", label=f"k = {self.k:,}")
        panel.axhline(2, color="tab:red", linewidth=1, label="infinite variance below")
        panel.set(xscale="log", xlabel="k", ylabel="tail index", ylim=(0, max(4, min(2 * self.index, 20))))

    def _draw_survival(self, panel: Any) -> None:
        ks = self.curve[0]
        panel.plot(self.sizes, ks / self.count, ".", markersize=3, label="share of numbers above u")
        if math.isfinite(self.index):
            beyond = ks <= self.k
            fitted = self.k / self.count * (self.sizes[beyond] / self.sizes[beyond][-1]) ** -self.index
            panel.plot(self.sizes[beyond], fitted, color="black", linewidth=1, label=f"slope -{self.index:.2f}")
        panel.set(xscale="log", yscale="log", xlabel="u, in median deviations")


def tail_index(samples: Tensor | ArrayLike | Sequence[Tensor], *, share: float | None = None) -> TailIndex:
    """Hill's estimate of the tail index of gradient noise.

        index = k / sum of ln(size_i / size_(k+1)) over the k largest

    Every coordinate is centred by its median over the repeats and scaled by its median absolute deviation; one that has
    the same value in half of the repeats or more has no such scale and is left out. All sizes are pooled. The standard
    error, index / sqrt(k), assumes independent numbers. Coordinates of one gradient are not: it is then too small, and
    more repeats say more than more coordinates.

    Hill: a simple general approach to inference about the tail of a distribution, Annals of Statistics 1975.

    Args:
        samples: Stochastic gradients at the SAME point, such as ``gradient_samples`` gives: (repeats,), (repeats,
            coordinates) or a sequence of vectors.
        share: k as a share of all numbers, between 0 and 1. None: k is where Hill's plot is flattest: of all stretches
            from k/2 to k that lie between 0.5% and 10% of the numbers, and have k of 20 or more, the one along which
            1/index has the smallest standard deviation relative to its mean. With too few numbers for any stretch, k is
            a tenth of them.

    Returns:
        The index with its standard error, a verdict in words, and a plot.

    Example:
        samples = fs.tails.gradient_samples(model, (loss_fn(model(x), y) for x, y in loader))
        print(fs.tails.tail_index(samples))
    """
    if share is not None and check.fraction("tail_index", "share", share) in (0, 1):
        raise ValueError(f"tail_index.share must be between 0 and 1, and neither, got {share}")
    sizes, dropped = _sizes(_matrix(samples))
    wanted = None if share is None else max(1, round(share * sizes.size))
    top = min(sizes.size, max(math.ceil(_SHOWN * sizes.size), wanted or 0) + 1)
    largest = np.sort(np.partition(sizes, -top)[-top:])[::-1]
    # A size of zero has no logarithm. Only a share of more than half can reach one.
    logs = np.log(largest[largest > 0])
    ks = np.arange(1, len(logs))
    excess = np.cumsum(logs[:-1]) / ks - logs[1:]
    # A difference that is only rounding is none.
    excess[excess < 1e-12] = 0.0
    k = _flattest(excess, sizes.size) if wanted is None else min(wanted, len(ks))
    shown = np.union1d(np.geomspace(1, len(ks), 400).astype(np.int64), [k])
    with np.errstate(divide="ignore"):
        indices = 1 / excess[shown - 1]
    index = float(indices[shown == k][0])
    return TailIndex(
        index=index,
        error=index / math.sqrt(k),
        k=k,
        count=sizes.size,
        dropped=dropped,
        curve=(shown, indices),
        sizes=largest[shown],
    )


def gradient_samples(model: nn.Module, losses: Iterable[Tensor], *, coordinates: int = 10_000, seed: int = 0) -> Tensor:
    """Stochastic gradients of a model at one point, for ``tail_index``: a row for every loss, on the CPU.

    Each loss is differentiated as it comes. ``.grad`` of the parameters is left alone.

    Args:
        model: The module; only its parameters with ``requires_grad`` are looked at.
        losses: Scalar losses of this model on different batches; a generator needs memory for one at a time.
        coordinates: How many coordinates are kept of every gradient, drawn at random, the same of each; all where there
            are fewer.
        seed: Seed from which they are drawn.

    Returns:
        A tensor of (losses, coordinates), in float32, or float64 where gradients are.

    Example:
        samples = fs.tails.gradient_samples(model, (loss_fn(model(x), y) for x, y in loader))
        print(fs.tails.tail_index(samples))
    """
    check.whole("gradient_samples", "coordinates", coordinates)
    check.whole("gradient_samples", "seed", seed, at_least=0)
    parameters = trainable(model)
    if not parameters:
        raise ValueError("gradient_samples.model has no trainable parameters: there is no gradient to sample")
    if isinstance(losses, Tensor) or not isinstance(losses, Iterable):
        raise TypeError(
            "gradient_samples.losses must be an iterable of losses"
            "\n  write gradient_samples(model, (loss_fn(model(x), y) for x, y in loader))"
        )
    chosen = _chosen(parameters, coordinates, seed)
    rows = [_row(loss, parameters, chosen) for loss in losses]
    if not rows:
        raise ValueError("gradient_samples.losses must give at least one loss, got none: an exhausted loader?")
    return torch.stack(rows).cpu()


def _matrix(samples: Any) -> Numbers:
    if not isinstance(samples, (Tensor, np.ndarray)):
        samples = [_array(one) for one in samples]
        if len({one.shape for one in samples}) > 1:
            raise ValueError("tail_index.samples must be vectors of one length, got several: one model, one point")
    matrix = _array(samples)
    if matrix.ndim not in (1, 2):
        raise ValueError(f"tail_index.samples must be (repeats,) or (repeats, coordinates), got shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise ValueError("tail_index.samples must be finite, got nan or infinity: measure in float32 or better")
    return matrix[:, None] if matrix.ndim == 1 else matrix


def _array(samples: Any) -> Numbers:
    if isinstance(samples, Tensor):
        samples = samples.detach().double().cpu().numpy()
    return np.asarray(samples, dtype=np.float64)


def _sizes(matrix: Numbers) -> tuple[Numbers, int]:
    """How far every number lies from its coordinate's median, in that coordinate's unit; and how many had none."""
    if len(matrix) < _REPEATS or matrix.size < _NUMBERS:
        raise ValueError(
            f"tail_index.samples must have at least {_REPEATS} repeats, to know each coordinate's scale, and "
            f"{_NUMBERS} numbers, got shape {matrix.shape}{_FIX}"
        )
    away = np.abs(matrix - np.median(matrix, axis=0))
    unit = np.median(away, axis=0)
    moves = unit > 0
    sizes = (away[:, moves] / unit[moves]).ravel()
    if sizes.size < _NUMBERS:
        raise ValueError(
            f"tail_index.samples must have at least {_NUMBERS} numbers in coordinates that move in more than half of "
            f"the repeats, got {sizes.size}{_FIX}"
        )
    return sizes, int(np.count_nonzero(~moves))


def _flattest(excess: Numbers, count: int) -> int:
    lowest, highest = max(_STRETCH, math.ceil(2 * _LEAST * count)), int(_MOST * count)
    ends = np.unique(np.geomspace(min(lowest, highest), highest, 100).round().astype(np.int64))
    stretches = [excess[end // 2 - 1 : end] for end in ends]
    # A stretch that is all zero is as flat as can be.
    spreads = [float(np.std(stretch)) / max(float(np.mean(stretch)), 1e-300) for stretch in stretches]
    return int(ends[np.argmin(spreads)])


def _chosen(parameters: Sequence[Tensor], coordinates: int, seed: int) -> list[Tensor]:
    """For every parameter, which of its numbers are kept."""
    ends = np.cumsum([p.numel() for p in parameters])
    rng, kept = np.random.default_rng(seed), min(coordinates, int(ends[-1]))
    places = np.sort(rng.choice(ends[-1], kept, replace=False, shuffle=False))
    parts = np.split(places, np.searchsorted(places, ends[:-1]))
    starts = [0, *ends[:-1]]
    return [torch.from_numpy(a - b).to(p.device) for a, b, p in zip(parts, starts, parameters, strict=True)]


def _row(loss: Any, parameters: Sequence[Tensor], chosen: Sequence[Tensor]) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise TypeError(f"gradient_samples.losses must give scalar tensors, got {got}\n  take loss.mean(), not .item()")
    if not loss.requires_grad:
        raise ValueError("gradient_samples.losses must give losses with a gradient: compute them outside no_grad")
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    wide = torch.float64 if any(g.dtype == torch.float64 for g in gradients) else torch.float32
    parts = [(g.to_dense() if g.is_sparse else g).reshape(-1)[at] for g, at in zip(gradients, chosen, strict=True)]
    return torch.cat([part.to(parts[0].device, wide) for part in parts])
