"""Raw and Cast: what they promise, and what they refuse."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flockstep.codecs import Cast, Codec, Modular, Raw, Stochastic, TopK
from flockstep.codecs.codec import readable
from flockstep.errors import CodecRange
from flockstep.message import Message
from flockstep.testing import LawBroken, check_codec

CODECS: list[Codec] = [Raw(), Cast(), Cast(dtype="bf16"), Cast(dtype="fp16")]
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def there_and_back(codec: Codec, v: Tensor) -> Tensor:
    return codec.decode(codec.encode(v, rng()), torch.zeros_like(v))


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.cases(test=2)
@pytest.mark.slow
def test_every_codec_keeps_the_laws(codec: Codec) -> None:
    check_codec(codec)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_raw_is_bit_for_bit_in_every_dtype(dtype: torch.dtype) -> None:
    v = torch.tensor([0.0, -0.0, 1.0, -1.5, 0.1, 2.0**-9]).to(dtype)
    message = Raw().encode(v, rng())
    back = Raw().decode(message, v)
    assert len(message.data) == v.numel() * v.element_size()
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), v.view(torch.uint8))


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 4)], ids=str)
def test_shapes_come_back(codec: Codec, shape: tuple[int, ...]) -> None:
    v = torch.ones(shape)
    message = codec.encode(v, rng())
    assert message.shape == shape
    assert torch.equal(codec.decode(message, v), v)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_memory_that_is_not_in_one_piece_is_coded_in_order(codec: Codec) -> None:
    grid = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(there_and_back(codec, grid.t()), grid.t())
    assert torch.equal(there_and_back(codec, grid[:, 1]), grid[:, 1])
    assert torch.equal(there_and_back(codec, torch.tensor([2.0]).expand(5)), torch.full((5,), 2.0))


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_a_message_can_lie_anywhere_in_a_buffer(codec: Codec) -> None:
    v = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    message = codec.encode(v, rng())
    buffer = torch.cat([torch.zeros(3, dtype=torch.uint8), message.data])
    odd = Message(buffer[3:], message.codec, message.shape, message.dtype)
    assert torch.equal(codec.decode(odd, v), v)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_gradients_do_not_follow_a_vector_into_its_message(codec: Codec) -> None:
    v = torch.ones(3, requires_grad=True)
    message = codec.encode(v, rng())
    assert not message.data.requires_grad
    assert not codec.decode(message, v).requires_grad


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_cast_of_its_own_format_does_not_share_memory(dtype: torch.dtype) -> None:
    check_codec(Cast(dtype="bf16"), sizes=(5,), dtypes=(dtype,))
    check_codec(Cast(dtype="fp16"), sizes=(5,), dtypes=(dtype,))


@settings(deadline=None)
@given(v=st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=20))
@pytest.mark.slow
def test_bf16_stays_within_its_bound_for_all_of_float32(v: list[float]) -> None:
    vector = torch.tensor(v, dtype=torch.float32)
    try:
        back = there_and_back(Cast(dtype="bf16"), vector)
    except CodecRange:
        # Only the last half step below float32's end rounds up to infinity.
        assert vector.abs().max() > torch.finfo(torch.bfloat16).max
        return
    error = (back.double() - vector.double()).abs()
    assert bool((error <= Cast(dtype="bf16").error_bound(vector)).all())


@settings(deadline=None)
@given(v=st.lists(st.floats(-65504, 65504), max_size=20), single=st.booleans())
def test_fp16_stays_within_its_bound_down_to_its_smallest_values(v: list[float], single: bool) -> None:
    vector = torch.tensor(v, dtype=torch.float32 if single else torch.float64)
    vector = torch.cat([vector, vector * 2.0**-24, vector * 2.0**-40])
    error = (there_and_back(Cast(dtype="fp16"), vector).double() - vector.double()).abs()
    assert bool((error <= Cast(dtype="fp16").error_bound(vector)).all())


def test_sixteen_bits_meet_the_bound_others_publish() -> None:
    torch.manual_seed(0)
    v = torch.randn(128, 128, 64)
    assert float((there_and_back(Cast(dtype="fp16"), v) - v).square().mean()) < 5e-8


def test_cast_halves_float32_and_says_which_dtype_to_return_to() -> None:
    message = Cast().encode(torch.ones(10), rng())
    assert len(message.data) == 20
    assert message.dtype == torch.float32
    assert message.codec == "Cast(bf16)"


@pytest.mark.parametrize(
    ("codec", "v", "named"),
    [
        (Cast(dtype="fp16"), torch.tensor([1.0, -70000.0]), "70000"),
        (Cast(dtype="fp16"), torch.tensor([65520.0]), "65520"),
        (Cast(dtype="bf16"), torch.tensor([3.4e38]), "3.39999995e+38"),
        (Cast(dtype="bf16"), torch.tensor([1e300], dtype=torch.float64), "1e+300"),
        # bf16 rounds it up to 65536, which float16 cannot hold on the way back.
        (Cast(dtype="bf16"), torch.tensor([65504.0], dtype=torch.float16), "65504"),
    ],
)
def test_an_overflow_names_the_largest_value(codec: Cast, v: Tensor, named: str) -> None:
    with pytest.raises(CodecRange) as caught:
        codec.encode(v, rng())
    sentence = f"CodecRange: Cast to {codec.dtype} would make the largest value, {named}, infinite"
    assert str(caught.value) == sentence


def test_what_rounds_down_to_the_largest_fp16_is_coded() -> None:
    assert float(there_and_back(Cast(dtype="fp16"), torch.tensor([65519.0]))) == 65504


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([1.0, math.nan], "1 value that is not finite: nan at index 1"),
        ([0.0, -math.inf, math.nan, 0.0, math.inf], "3 values that are not finite: the first is -inf at index 1"),
    ],
)
@pytest.mark.parametrize("codec", [*CODECS, Modular(), Stochastic(), TopK(fraction=0.5)], ids=repr)
def test_values_that_are_not_finite_are_counted_and_the_first_is_named(
    codec: Codec, values: list[float], sentence: str
) -> None:
    with pytest.raises(CodecRange) as caught:
        codec.encode(torch.tensor(values), rng())
    assert caught.value.message == f"{type(codec).__name__} cannot code a vector with {sentence}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_dtype_refuses_infinity(dtype: torch.dtype) -> None:
    with pytest.raises(CodecRange, match="Raw cannot code a vector with 1 value"):
        Raw().encode(torch.tensor([1.0, math.inf]).to(dtype), rng())


@pytest.mark.parametrize("codec", [Raw(), TopK(fraction=1.0)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_large_values_are_not_mistaken_for_infinite_ones(codec: Codec, dtype: torch.dtype) -> None:
    # Their sum overflows, and they do not.
    v = torch.full((5,), torch.finfo(dtype).max, dtype=dtype)
    assert torch.equal(there_and_back(codec, v), v)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_message_with_values_that_are_not_finite_is_refused(dtype: torch.dtype, bad: float, size: int) -> None:
    v = torch.ones(size, dtype=dtype)
    for codec, inside in ((Raw(), dtype), (Cast(), torch.bfloat16), (Cast(dtype="fp16"), torch.float16)):
        garbled = torch.ones(size, dtype=inside)
        garbled[-1] = bad
        message = dataclasses.replace(codec.encode(v, rng()), data=garbled.view(torch.uint8))
        with pytest.raises(CodecRange, match=rf"cannot decode a message with 1 value .*{bad} at index {size - 1}"):
            codec.decode(message, v)


def test_what_a_shorter_dtype_cannot_hold_is_refused() -> None:
    v = torch.ones(3, dtype=torch.float16)
    large = torch.tensor([1.0, 1e38, 1.0]).bfloat16().view(torch.uint8)
    with pytest.raises(CodecRange, match=r"Cast cannot decode a message with 1 value .* inf at index 1"):
        Cast().decode(dataclasses.replace(Cast().encode(v, rng()), data=large), v)
    claimed = dataclasses.replace(Stochastic().encode(torch.tensor([1.0, 3e38, 1.0]), rng()), dtype=torch.float16)
    with pytest.raises(CodecRange, match="Stochastic cannot decode a message with 1 value"):
        Stochastic().decode(claimed, v)


def test_a_level_that_no_vector_has_is_refused_where_it_overflows() -> None:
    message = Stochastic().encode(torch.full((3,), 3.4e38), rng())
    data = message.data.clone()
    data[4:] = 0xFF
    with pytest.raises(CodecRange, match="Stochastic cannot decode a message with 3 values"):
        Stochastic().decode(dataclasses.replace(message, data=data), torch.ones(3))


@pytest.mark.parametrize("codec", [*CODECS, Modular(), Stochastic(), TopK(fraction=0.5)], ids=repr)
def test_a_message_of_whole_numbers_is_refused(codec: Codec) -> None:
    message = dataclasses.replace(codec.encode(torch.ones(4), rng()), dtype=torch.int32)
    with pytest.raises(CodecRange, match=r"cannot decode a message of torch\.int32, only of floating-point numbers"):
        codec.decode(message, torch.ones(4))


def test_the_law_finds_a_decoder_that_believes_what_it_reads() -> None:
    class Trusting(Raw):
        def decode(self, message: Message, near: Tensor) -> Tensor:
            readable(self, message, near, nbytes=near.nbytes)
            return message.data.clone().view(message.dtype)

    with pytest.raises(LawBroken, match=r"Trusting\.decode must refuse garbled data, or give finite values"):
        check_codec(Trusting(), sizes=(7,))


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_only_floating_point_vectors_are_coded(codec: Codec, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match="codes floating-point vectors, got torch"):
        codec.encode(torch.ones(3).to(dtype), rng())


def test_the_two_formats_do_not_read_each_other() -> None:
    message = Cast(dtype="fp16").encode(torch.ones(3), rng())
    with pytest.raises(CodecRange) as caught:
        Cast(dtype="bf16").decode(message, torch.ones(3))
    assert caught.value.message == "Cast cannot decode a message of Cast(fp16), only of Cast(bf16)"


def test_messages_that_do_not_fit_are_refused_by_name() -> None:
    message = Raw().encode(torch.ones(3), rng())
    with pytest.raises(CodecRange, match=r"Raw cannot decode a message of shape \(3,\) for a vector of shape \(4,\)"):
        Raw().decode(message, torch.ones(4))
    cut = dataclasses.replace(message, data=message.data[:-1])
    with pytest.raises(CodecRange, match=r"Raw cannot decode 11 bytes of data, 12 are needed"):
        Raw().decode(cut, torch.ones(3))


def test_arguments_are_checked_and_fixed() -> None:
    with pytest.raises(ValueError, match=r"Cast.dtype must be one of 'bf16', 'fp16', got 'fp8'"):
        Cast(dtype="fp8")  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Cast().dtype = "fp16"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Cast("bf16")  # type: ignore[misc]
    assert Cast() == Cast(dtype="bf16")
    assert hash(Raw()) == hash(Raw())
