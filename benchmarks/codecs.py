"""What coding a model costs: encode and decode against a plain copy of the same vector, in turns.

On one CPU core: as a ratio of ``torch.clone``'s time to ours, for 10 M float32 numbers, in processor time. Beside ours
stand torch's own 8-bit quantisation and, where it is installed, hivemind's. On a GPU: bytes that must move (vector in,
codes out, or the reverse), per second, as a share of the bandwidth that a copy reaches, each captured once and
replayed, so that launching does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.report import Progress, arguments, finish
from flockstep.codecs.modular import Modular
from flockstep.codecs.raw import Raw
from flockstep.codecs.stochastic import Stochastic

RESULTS = Path(__file__).parent / "results"
COUNT, QUICK_COUNT, REACH = 10_000_000, 1_000_000, 0.01
BITS = (4, 8, 10, 16)
LEAST_CPU, LEAST_GPU = 0.35, 0.6
Work = Callable[[], Any]


def vectors(count: int, device: str) -> tuple[Tensor, Tensor]:
    """A model, and another close to it."""
    torch.manual_seed(0)
    x = torch.randn(count, device=device)
    return x, x + (torch.rand_like(x) - 0.5) * REACH


def contenders(x: Tensor, y: Tensor) -> dict[str, tuple[Work, Work]]:
    """By name, what encodes and what decodes."""
    rng, found = np.random.default_rng(0), {}
    for bits in BITS:
        codec = Modular(bits=bits, reach=REACH)
        message = codec.encode(x, rng)
        found[f"Modular, {bits} bits ({codec.runs_on(x)})"] = _both(codec, x, y, message, rng)
    levels = Stochastic(bits=8)
    found[f"Stochastic, 8 bits ({levels.runs_on(x)})"] = _both(levels, x, y, levels.encode(x, rng), rng)
    found["Raw"] = _both(Raw(), x, y, Raw().encode(x, rng), rng)
    scale = float(x.abs().max()) / 127
    quantised = torch.quantize_per_tensor(x, scale, 0, torch.qint8)
    found["torch.quantize_per_tensor, 8 bits"] = (
        lambda: torch.quantize_per_tensor(x, scale, 0, torch.qint8),
        quantised.dequantize,
    )
    try:
        from hivemind.compression import CompressionInfo, Uniform8BitQuantization  # type: ignore[import-not-found]
    except ImportError:
        return found
    theirs, info = Uniform8BitQuantization(), CompressionInfo.from_tensor(x)
    packed = theirs.compress(x, info)
    found["hivemind Uniform8BitQuantization"] = lambda: theirs.compress(x, info), lambda: theirs.extract(packed)
    return found


def _both(codec: Any, x: Tensor, y: Tensor, message: Any, rng: np.random.Generator) -> tuple[Work, Work]:
    return lambda: codec.encode(x, rng), lambda: codec.decode(message, y)


def on_the_cpu(count: int, rounds: int, progress: Progress) -> list[dict[str, Any]]:
    """Ratios to a clone, round by round."""
    x, y = vectors(count, "cpu")
    works = {
        (name, verb): work for name, both in contenders(x, y).items() for verb, work in zip(VERBS, both, strict=True)
    }
    for work in works.values():
        work()
    ratios: dict[tuple[str, str], list[float]] = {key: [] for key in works}
    for number in range(rounds):
        progress(f"CPU, round {number + 1}")
        before = _processor_seconds(x.clone)
        for key, work in works.items():
            mine, after = _processor_seconds(work), _processor_seconds(x.clone)
            ratios[key].append((before + after) / 2 / mine)
            before = after
    return [_row("one CPU core", *key, found) for key, found in ratios.items()]


VERBS = ("encode", "decode")


def _processor_seconds(work: Work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def on_the_gpu(count: int, rounds: int, progress: Progress) -> list[dict[str, Any]]:
    """Shares of a copy's bandwidth."""
    from flockstep.codecs.lattice import on_triton
    from flockstep.codecs.lattice.lattice import Plan, exponents_for

    x, y = vectors(count, "cuda")
    out = torch.empty_like(x)
    copy = _captured(lambda: out.copy_(x))
    rows = []
    for bits in BITS:
        progress(f"GPU, {bits} bits")
        plan = Plan(count, bits)
        exponents = exponents_for(torch.full((plan.blocks,), REACH), bits).cuda()
        data = torch.zeros(plan.nbytes, dtype=torch.uint8, device="cuda")
        bad = torch.zeros(1, dtype=torch.int32, device="cuda")
        right = torch.empty(plan.blocks, dtype=torch.bool, device="cuda")
        furthest = torch.empty(plan.blocks, device="cuda")
        encode = _captured(lambda: on_triton.launch_encode(x, exponents, 7, plan, data, bad))  # noqa: B023
        decode = _captured(lambda: on_triton.launch_decode(data, y, plan, out, right, furthest))  # noqa: B023
        works = {"encode": (encode, 4 * count + plan.nbytes), "decode": (decode, 8 * count + plan.nbytes)}
        rows += _shares(f"Modular, {bits} bits (triton)", works, copy, count, rounds)
    return rows + _levels_on_the_gpu(x, out, copy, rounds)


def _levels_on_the_gpu(x: Tensor, out: Tensor, copy: torch.cuda.CUDAGraph, rounds: int) -> list[dict[str, Any]]:
    from flockstep.codecs.qsgd import on_triton
    from flockstep.codecs.qsgd.levels import Plan

    plan, count = Plan(x.numel(), 8), x.numel()
    scales = torch.empty(plan.blocks, device="cuda")
    codes = torch.empty(plan.code_bytes, dtype=torch.uint8, device="cuda")
    bad = torch.zeros(1, dtype=torch.int32, device="cuda")
    encode = _captured(lambda: on_triton.launch_encode(x, 7, plan, scales, codes, bad))
    decode = _captured(lambda: on_triton.decode(scales, codes, plan, out))
    # Unlike Modular's, its decoder reads no vector of the receiver.
    works = {verb: (work, 4 * count + plan.nbytes) for verb, work in (("encode", encode), ("decode", decode))}
    return _shares("Stochastic, 8 bits (triton)", works, copy, count, rounds)


def _shares(
    name: str, works: dict[str, tuple[torch.cuda.CUDAGraph, int]], copy: torch.cuda.CUDAGraph, count: int, rounds: int
) -> list[dict[str, Any]]:
    rows = []
    for verb, (work, moved) in works.items():
        shares = []
        for _ in range(rounds):
            bandwidth = 8 * count / _device_seconds(copy)
            shares.append(moved / _device_seconds(work) / bandwidth)
        rows.append(_row(torch.cuda.get_device_name(), name, verb, shares))
    return rows


def _captured(work: Work) -> torch.cuda.CUDAGraph:
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            work()
    return graph


def _device_seconds(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(5):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / 100


def _row(where: str, name: str, verb: str, ratios: list[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "where": where,
        "codec": name,
        "verb": verb,
        "ratio": round(middle, 3),
        "quartiles": f"{low:.3f} to {high:.3f}",
        "rounds": len(ratios),
    }


def main() -> None:
    """Every machine that is here."""
    options = arguments("benchmarks.codecs", __doc__ or "").parse_args()
    torch.set_num_threads(1)
    count, rounds = (QUICK_COUNT, 4) if options.quick else (COUNT, 25)
    gpu = torch.cuda.is_available()
    progress = Progress(rounds + (len(BITS) if gpu else 0))
    rows = on_the_cpu(count, rounds, progress)
    if gpu:
        rows += on_the_gpu(count, rounds, progress)
    met = {}
    for row in rows:
        if row["codec"].startswith("Modular, 8"):
            least = LEAST_CPU if row["where"] == "one CPU core" else LEAST_GPU
            what = "of a clone's speed" if least == LEAST_CPU else "of a copy's bandwidth"
            met[f"{row['codec']}, {row['verb']}: {row['ratio']} {what}, at least {least}"] = row["ratio"] >= least
    figures = {"ratios": {f"{row['where']}: {row['codec']}, {row['verb']}": row["ratio"] for row in rows}}
    note = f"{count:,} float32 numbers." + ("" if gpu else " There is no GPU here: its rows are left out.")
    folder = options.out or (None if options.quick else RESULTS)
    finish("benchmarks.codecs", rows, figures=figures, met=met, folder=folder, note=note)


if __name__ == "__main__":
    main()
