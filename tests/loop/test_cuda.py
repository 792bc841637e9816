"""The same loop on a GPU: what is decided on the device is what the CPU decides."""

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

import flockstep as fs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
STEPS = 12


def trained(device, strategy, *, blow_up=(), momentum=0.0):
    """A small model after a few steps, and the node's report; at the steps of ``blow_up`` the gradient is infinite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x, y = torch.randn(16, 5).double(), 30 * torch.randn(16, 1).double()
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    with fs.join(model, optimizer, strategy) as node:
        for k in range(STEPS):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            (loss * float("inf") if k in blow_up else loss).backward()
            optimizer.step()
        report = node.report()
    return [p.detach().cpu() for p in model.parameters()], report


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "strategy",
    [
        fs.LocalSGD(period=5),
        fs.CELGC(period=5, gamma=0.5),
        fs.CELGC(period=5, gamma=1e9),
        fs.CELGC(period=5),
        fs.CELGCUpdate(period=5, gamma=0.1),
        fs.LocalSGD(period=5, clip=fs.clips.ClipNorm(max_norm=20.0)),
    ],
)
def test_a_gpu_takes_the_steps_of_a_cpu_and_counts_the_same(strategy, momentum):
    (here, told), (there, found) = (trained(device, strategy, momentum=momentum) for device in ("cpu", "cuda"))
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert told.counts == found.counts


def test_a_gradient_that_is_not_finite_moves_nothing_and_is_counted():
    strategy = fs.CELGC(period=5, gamma=0.5)
    (here, told), (there, found) = (trained(device, strategy, blow_up=(3, 7)) for device in ("cpu", "cuda"))
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert told.skipped == found.counts["not finite"] == 2
    assert told.counts["clipped"] == found.counts["clipped"]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_clipping_never_waits_for_the_gpu():
    """torch raises at any operation that would bring a number to the host."""
    model = nn.Linear(5, 3).cuda()
    x = torch.randn(4, 5, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with fs.join(model, optimizer, fs.CELGC(period=1000, gamma=1e-6)) as node:
        for k in range(3):
            torch.cuda.set_sync_debug_mode("error" if k else "default")
            try:
                optimizer.zero_grad()
                model(x).square().sum().backward()
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert node.report().counts["clipped"] == 3


def test_mixed_precision_with_a_fused_optimizer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scaler, x = GradScaler("cuda", init_scale=2.0**10), torch.randn(64, 8, device="cuda")
    y = x.sum(1, keepdim=True)
    losses = []
    with fs.join(model, optimizer, fs.CELGC(period=4, gamma=1.0)) as node:
        for k in range(60):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss * float("inf") if k == 30 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        report = node.report()
    assert report.steps == 60
    # The scaler had the optimizer skip it; the clip saw it first.
    assert report.counts["not finite"] == 1
    assert losses[-1] < losses[0] / 10
    assert all(p.isfinite().all() for p in model.parameters())
