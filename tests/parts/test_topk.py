"""The few largest coordinates: which, how many, and what is refused."""

import dataclasses

import numpy as np
import pytest
import torch

import flockstep as fs
from flockstep.testing import check_codec


def rng():
    return np.random.default_rng(0)


def there_and_back(codec, v):
    return codec.decode(codec.encode(v, rng()), torch.full_like(v, 9.0))


def changed(message, data):
    return dataclasses.replace(message, data=data)


@pytest.mark.parametrize("fraction", [1e-9, 0.01, 0.5, 1.0])
@pytest.mark.cases(test=2)
@pytest.mark.slow
def test_the_laws_of_codecs(fraction):
    check_codec(fs.codecs.TopK(fraction=fraction))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_largest_are_exact_and_all_others_zero(dtype):
    v = torch.tensor([0.5, -3.0, 0.0, 2.0, -0.125, 1.0, 0.25]).to(dtype)
    message = fs.codecs.TopK(fraction=0.4).encode(v, rng())
    assert len(message.data) == 3 * (4 + dtype.itemsize)
    decoded = fs.codecs.TopK(fraction=0.4).decode(message, v)
    assert decoded.dtype == dtype
    assert decoded.tolist() == [0.0, -3.0, 0.0, 2.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("fraction", "count", "kept"),
    [(0.01, 0, 0), (0.01, 1, 1), (0.01, 100, 1), (0.01, 101, 2), (0.07, 100, 7), (1e-9, 5, 1), (1, 5, 5), (0.5, 5, 3)],
)
def test_how_many_are_kept(fraction, count, kept):
    message = fs.codecs.TopK(fraction=fraction).encode(torch.ones(count), rng())
    assert len(message.data) == 8 * kept


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_of_equals_the_first_are_kept(count):
    v = torch.ones(count) * torch.tensor([1.0, -1.0]).repeat(count)[:count]
    kept = -(-count // 2)
    decoded = there_and_back(fs.codecs.TopK(fraction=0.5), v)
    assert torch.equal(decoded[:kept], v[:kept])
    assert not decoded[kept:].any()


def test_it_is_numpys_choice():
    v = np.random.default_rng(1).standard_normal(10_001)
    kept = np.argsort(-np.abs(v), kind="stable")[:101]
    wanted = np.zeros_like(v)
    wanted[kept] = v[kept]
    assert np.array_equal(there_and_back(fs.codecs.TopK(fraction=0.01), torch.from_numpy(v)).numpy(), wanted)


def test_the_error_bound_is_the_error():
    v = torch.randn(1000, dtype=torch.float64)
    codec = fs.codecs.TopK(fraction=0.1)
    error = (there_and_back(codec, v) - v).abs()
    assert torch.equal(codec.error_bound(v), error)
    assert int((error == 0).sum()) == 100
    assert float(error.max()) <= float(v.abs().topk(100).values.min())


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (2, 0, 4)], ids=str)
def test_shapes_and_memory_in_pieces(shape):
    v = torch.arange(float(np.prod(shape))).reshape(shape)
    assert torch.equal(there_and_back(fs.codecs.TopK(fraction=1.0), v), v)
    assert torch.equal(
        there_and_back(fs.codecs.TopK(fraction=1.0), v.mT if v.dim() > 1 else v), v.mT if v.dim() > 1 else v
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_message_can_lie_anywhere_in_a_buffer(dtype):
    v = torch.tensor([1.0, -2.0, 3.0], dtype=dtype)
    codec = fs.codecs.TopK(fraction=1.0)
    message = codec.encode(v, rng())
    buffer = torch.cat([torch.zeros(3, dtype=torch.uint8), message.data])
    assert torch.equal(codec.decode(changed(message, buffer[3:]), v), v)


@pytest.mark.parametrize("indices", [[0, 7], [-1, 3], [3, 3], [5, 2], [2**31 - 1, 3], [0, -(2**31)]])
def test_indices_that_make_no_sense_are_refused(indices):
    v, codec = torch.randn(7), fs.codecs.TopK(fraction=0.2)
    message = codec.encode(v, rng())
    data = message.data.clone()
    data[:8] = torch.tensor(indices, dtype=torch.int32).view(torch.uint8)
    with pytest.raises(fs.CodecRange, match="TopK cannot decode indices that do not ascend from 0 to at most 6"):
        codec.decode(changed(message, data), v)


def test_values_and_lengths_that_make_no_sense_are_refused():
    v, codec = torch.randn(7), fs.codecs.TopK(fraction=0.2)
    message = codec.encode(v, rng())
    data = message.data.clone()
    data[8:12] = torch.tensor([float("nan")]).view(torch.uint8)
    with pytest.raises(fs.CodecRange, match="1 value that is not finite: nan at index 0"):
        codec.decode(changed(message, data), v)
    with pytest.raises(fs.CodecRange, match="only of floating-point numbers"):
        codec.decode(dataclasses.replace(message, dtype=torch.int32), v)
    # One pair less, or more, would be read as other pairs.
    for data in (message.data[:8], torch.cat([message.data, message.data[:8]])):
        with pytest.raises(fs.CodecRange, match="16 are needed"):
            codec.decode(changed(message, data), v)
    with pytest.raises(fs.CodecRange, match="TopK cannot decode 16 bytes of data, 56 are needed"):
        fs.codecs.TopK(fraction=1.0).decode(message, v)


def test_more_coordinates_than_int32_counts_are_refused():
    many = torch.zeros(1).expand(2**31)
    with pytest.raises(fs.CodecRange, match="TopK cannot code 2147483648 coordinates, at most 2147483647"):
        fs.codecs.TopK().encode(many, rng())


@pytest.mark.parametrize(
    ("fraction", "kind", "sentence"),
    [
        (0.0, ValueError, "TopK.fraction must be positive, got 0.0"),
        (-0.1, ValueError, "TopK.fraction must be positive, got -0.1"),
        (1.5, ValueError, "TopK.fraction must be between 0 and 1, got 1.5"),
        (True, TypeError, "TopK.fraction must be a number, got True"),
        ("1", TypeError, "TopK.fraction must be a number, got '1'"),
    ],
)
def test_bad_arguments(fraction, kind, sentence):
    with pytest.raises(kind, match=sentence):
        fs.codecs.TopK(fraction=fraction)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("count", [0, 1, 7, 100_003])
def test_a_gpu_comes_to_the_same_bytes(count):
    v = torch.randn(count).round(decimals=1)
    codec = fs.codecs.TopK(fraction=0.01)
    message = codec.encode(v, rng())
    there = codec.encode(v.cuda(), rng())
    assert torch.equal(there.data.cpu(), message.data)
    assert torch.equal(codec.decode(message, v.cuda()).cpu(), codec.decode(message, v))
