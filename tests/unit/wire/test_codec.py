from __future__ import annotations

import pickle
from typing import get_args

import pytest
from hypothesis import given

from parallax_core.contracts.tensor import ITEM_BYTES, Tensor
from parallax_core.contracts.transport import Frame, FrameLimits
from parallax_core.wire.codec import WIRE_VERSION, decode, encode
from parallax_core.wire.errors import BadFrame, WireVersionMismatch
from parallax_core.wire.messages import CoreMessage, Mask, Message, Result, Step
from tests.unit.wire.damage import KINDS, make_step
from tests.unit.wire.make_golden_frames import EPOCH, SAMPLES, read_golden
from tests.unit.wire.strategies import messages

GOLDEN = read_golden()[str(WIRE_VERSION)]
ROW_HEADER_BYTES = 64


@given(messages)
def test_message_comes_out_as_it_went_in(message: Message) -> None:
    assert decode(encode(message), kinds=KINDS) == message


@given(messages)
def test_same_message_is_the_same_frame(message: Message) -> None:
    frame = encode(message)
    assert encode(message) == encode(decode(frame, kinds=KINDS)) == frame


def test_samples_cover_every_message() -> None:
    assert {type(message) for message in SAMPLES.values()} == {*get_args(CoreMessage), *KINDS.values()}


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_frame_is_written(name: str) -> None:
    assert encode(SAMPLES[name]) == GOLDEN[name], (
        "the bytes of a message have changed: raise WIRE_VERSION, then run python tests/unit/wire/make_golden_frames.py"
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_frame_is_read(name: str) -> None:
    assert decode(GOLDEN[name], kinds=KINDS) == SAMPLES[name]


@pytest.mark.parametrize("first", [0, 1, 147, 255])
def test_frame_of_another_version_names_both(first: int) -> None:
    with pytest.raises(WireVersionMismatch, match=rf"version {first} .* version {WIRE_VERSION}") as raised:
        decode(Frame(bytes([first]) + GOLDEN["hello"].header[1:]))
    assert (raised.value.theirs, raised.value.ours) == (first, WIRE_VERSION)


def test_tensors_are_borrowed_and_not_copied() -> None:
    data = bytearray(range(8))
    step = Step(EPOCH, 0, rows=make_step(2).rows, hidden=(Tensor("float16", (2, 2), data),))
    frame = encode(step)
    read = decode(frame)
    data[0] = 99
    assert frame.buffers[0][0] == 99
    assert isinstance(read, Step)
    assert read.hidden[0].data[0] == 99


def test_data_of_a_read_tensor_cannot_be_written() -> None:
    read = decode(Frame(GOLDEN["mask"].header, (bytearray(3),)))
    assert isinstance(read, Mask)
    assert memoryview(read.bits.data).readonly


def test_data_stay_out_of_the_header() -> None:
    tensor = Tensor("float32", (1, 1000), bytes(4000))
    assert len(encode(Result(EPOCH, 0, 0, tensors=(tensor,))).header) < 64


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_tensor_of_another_element_is_its_bytes(dtype: str) -> None:
    wide = memoryview(bytes(ITEM_BYTES[dtype] * 6)).cast("B").cast("B", shape=[2, 3 * ITEM_BYTES[dtype]])
    frame = encode(Result(EPOCH, 0, 0, tensors=(Tensor(dtype, (2, 3), wide),)))
    assert (memoryview(frame.buffers[0]).format, memoryview(frame.buffers[0]).ndim) == ("B", 1)
    read = decode(frame)
    assert isinstance(read, Result)
    assert read.tensors == (Tensor(dtype, (2, 3), bytes(wide)),)


def test_tensor_of_no_elements_has_an_empty_buffer() -> None:
    empty = Result(EPOCH, 0, 0, tensors=(Tensor("float32", (0, 8), b""),))
    assert [bytes(buffer) for buffer in encode(empty).buffers] == [b""]
    assert decode(encode(empty)) == empty


@pytest.mark.parametrize("rows", [1, 8, 256])
@pytest.mark.parametrize("first", [300, 2**16, 2**32])
@pytest.mark.parametrize("start", [0, 127, 128, 2**15, 2**16, 10**6])
def test_decode_row_takes_at_most_64_bytes_of_header(rows: int, first: int, start: int) -> None:
    assert len(encode(make_step(rows, start, first)).header) <= ROW_HEADER_BYTES * rows


def test_header_of_a_decode_does_not_grow_with_its_context() -> None:
    sizes = {start: len(encode(make_step(256, start)).header) for start in (10**5, 5 * 10**5, 10**6, 2**32 - 1)}
    assert len(set(sizes.values())) == 1


LIMITED = SAMPLES["result"]
SIZE = len(GOLDEN["result"].header)


@pytest.mark.parametrize(
    "limits", [FrameLimits(header_bytes=SIZE), FrameLimits(frame_bytes=SIZE + 6), FrameLimits(buffers=1)], ids=str
)
def test_frame_within_limits_is_read(limits: FrameLimits) -> None:
    assert decode(GOLDEN["result"], limits) == LIMITED


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (FrameLimits(header_bytes=SIZE - 1), f"its header has {SIZE} bytes"),
        (FrameLimits(frame_bytes=SIZE + 5), f"it has {SIZE + 6} bytes"),
        (FrameLimits(buffers=0), "it has 1 buffers"),
    ],
)
def test_frame_beyond_limits_is_refused(limits: FrameLimits, reason: str) -> None:
    with pytest.raises(BadFrame, match=reason):
        decode(GOLDEN["result"], limits)


def test_size_of_a_wide_view_is_counted_in_bytes() -> None:
    wide = memoryview(bytes(4000)).cast("I")
    assert len(wide) < 2000
    with pytest.raises(BadFrame, match="bytes; at most 2000 are allowed"):
        decode(Frame(GOLDEN["result"].header, (wide,)), FrameLimits(frame_bytes=2000))


def test_header_over_its_limit_is_refused_before_its_version_is_read() -> None:
    with pytest.raises(BadFrame, match="are allowed"):
        decode(Frame(b"\x09" * 100), FrameLimits(header_bytes=99))


@pytest.mark.parametrize("header", [b"", bytes([WIRE_VERSION])])
def test_frame_without_a_message_is_refused(header: bytes) -> None:
    with pytest.raises(BadFrame):
        decode(Frame(header))


def test_pickle_is_not_read() -> None:
    with pytest.raises((BadFrame, WireVersionMismatch)):
        decode(Frame(pickle.dumps({"a": 1})))
    with pytest.raises(BadFrame):
        decode(Frame(bytes([WIRE_VERSION]) + pickle.dumps({"a": 1})))
