"""A threshold that nothing reaches, where numbers are still on a GPU."""

import pytest
import torch
from torch import nn

import flockstep as fs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("clip", [fs.clips.ClipStep(gamma=1e6), fs.clips.ClipNorm(max_norm=1e6)], ids=repr)
def test_the_host_waits_for_the_gpu_once_at_the_hundredth_look(caplog, clip):
    """torch raises at any operation that would bring a number to the host."""
    model = nn.Linear(5, 3).cuda()
    x = torch.randn(4, 5, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with fs.join(model, optimizer, fs.LocalSGD(period=1000, clip=clip)) as node:
        for k in range(110):
            torch.cuda.set_sync_debug_mode("default" if k in (0, 99) else "error")
            try:
                optimizer.zero_grad()
                model(x).square().sum().backward()
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert node.report().counts["clipped"] == 0
    (told,) = [record.getMessage() for record in caplog.records if record.name == "flockstep"]
    assert told.startswith(f"{type(clip).__name__}.")
    assert float(told.partition("the longest was ")[2].partition(",")[0]) > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_one_clip_on_the_gpu_is_enough_to_say_nothing(caplog):
    model = nn.Linear(5, 3).cuda()
    x = torch.randn(4, 5, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with fs.join(model, optimizer, fs.CELGC(period=1000, gamma=1.0)) as node:
        for k in range(110):
            optimizer.zero_grad()
            (model(x).square().sum() * (1e6 if k == 50 else 1.0)).backward()
            optimizer.step()
        assert node.report().counts["clipped"] == 1
    assert not caplog.records
