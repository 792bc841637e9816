import pytest
import torch
from torch import nn

from flockstep.vector import Layout, trainable


def tied():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 2))
    model[1].weight = model[0].weight
    return model


def test_tied_weights_are_packed_once():
    assert Layout.of(tied()).names == ("0.weight", "2.weight", "2.bias")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_part_begins_where_memory_of_its_own_would(dtype):
    # A kernel that reads 16 bytes at once fails where a tensor begins in between (batch norm of cuDNN does).
    model = nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 1), nn.Linear(1, 5)).to(dtype)
    layout = Layout.of(model)
    packed = layout.pack(trainable(model))
    assert packed.numel() == layout.size
    assert all(view.data_ptr() % 64 == packed.data_ptr() % 64 for view in layout.views(packed))
    ones = torch.ones(layout.size)
    for view in layout.views(ones):
        view.zero_()
    assert packed[ones.bool()].abs().sum() == 0


def test_what_is_aligned_anyway_has_no_gaps():
    assert Layout.of(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1))).size == 16 * 16 + 16 + 16 + 1


def test_frozen_parameters_stay_out():
    model = tied()
    model[2].bias.requires_grad_(False)
    assert Layout.of(model).names == ("0.weight", "2.weight")


def test_pack_and_views_are_inverse():
    model = tied()
    layout = Layout.of(model)
    packed = layout.pack(trainable(model))
    for view, parameter in zip(layout.views(packed), trainable(model), strict=True):
        assert torch.equal(view, parameter)
    packed.zero_()
    assert model[0].weight.abs().sum() > 0


def test_pointed_parameters_share_the_vector():
    model = tied()
    layout = Layout.of(model)
    vector = torch.arange(float(layout.size))
    layout.point(trainable(model), vector)
    assert model[2].bias.tolist() == [32.0, 33.0]
    vector.fill_(1.0)
    assert model(torch.ones(1, 3)).tolist() == [[28.0, 28.0]]


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match="no trainable parameters"):
        Layout.of(nn.ReLU())


def test_mixed_dtypes_are_refused_by_name():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match=r"0.weight is torch.float32 and 1.weight is torch.float64"):
        Layout.of(model)
