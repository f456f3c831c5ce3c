"""Damaged and hostile frames are refused, fast, and without taking memory for what they only claim to hold."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest
from msgspec import inspect

from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.stage import Drawn, Row
from parallax_core.contracts.transport import Frame
from parallax_core.wire.codec import VERSION_BYTE, encode
from parallax_core.wire.errors import BadFrame
from parallax_core.wire.header import Header, TensorEntry
from tests.unit.wire.damage import LIES, classify_frame, damage_frames, decode_any, make_step, read_damaged, walk_lists
from tests.unit.wire.make_golden_frames import SAMPLES

FUZZED = 20_000
MEASURED = 3_000
DENSE_BYTES = 2**18
MOST_GROWTH = 40
"""Bytes of memory one byte of a header may become."""
ALLOWANCE = 32 * 1024
"""Bytes the reading itself may take: a traceback, a message, views."""


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def measure_decode(frame: Frame) -> int:
    """Return the most bytes that were allocated at once while ``frame`` was read."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with suppress(BadFrame):
        decode_any(frame)
    return tracemalloc.get_traced_memory()[1] - before


def test_damaged_frames_are_refused_or_are_messages() -> None:
    outcome = read_damaged(FUZZED, seed=20)
    assert outcome.frames == FUZZED == outcome.messages + outcome.bad_frames + outcome.version_mismatches
    assert min(outcome.messages, outcome.bad_frames, outcome.version_mismatches) > FUZZED // 100


def test_damage_is_the_same_for_the_same_seed() -> None:
    assert list(damage_frames(600, seed=1)) == list(damage_frames(600, seed=1)) != list(damage_frames(600, seed=2))


@pytest.mark.usefixtures("traced")
def test_damaged_frame_takes_no_memory_it_does_not_pay_for() -> None:
    for damage, frame in damage_frames(MEASURED, seed=21):
        if frame.header[:1] == VERSION_BYTE:
            taken = measure_decode(frame)
            assert taken <= MOST_GROWTH * len(frame.header) + ALLOWANCE, (damage, frame)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie[:5].hex())
@pytest.mark.parametrize("name", SAMPLES)
def test_length_that_lies_takes_no_memory(name: str, lie: bytes) -> None:
    frame = encode(SAMPLES[name])
    for at in range(1, len(frame.header)):
        taken = measure_decode(Frame(frame.header[:at] + lie, frame.buffers))
        assert taken <= MOST_GROWTH * (len(frame.header) + len(lie)) + ALLOWANCE


DENSE = {
    "drops": ([0, 0, 0, "here", [], [], []], [3, 0]),
    "rows": ([0, 0, 0, [], "here", [], []], [0, 0, [0]]),
    "outputs": ([0, 0, 0, [], [[0, 0, [0], "here"]], [], []], [0, 0]),
    "spans": ([0, 0, 0, [], [[0, 0, [0], [], [], "here"]], [], []], [0, 0, 0]),
    "tokens": ([0, 0, 0, [], [[0, 0, "here"]], [], []], 257),
    "drawns": ([1, 0, 0, 0, "here", [], 0, []], [0, [0]]),
    "tops": ([1, 0, 0, 0, [[1, 0, "here"]], [], 0, []], [0, 0]),
    "entries": ([0, 0, 0, [], [], "here", []], ["", [], 0]),
}
"""Headers whose bytes become as many objects as they can: where, and what."""


def fill_header(name: str, size: int) -> Frame:
    """Return a frame whose header of about ``size`` bytes is filled with what ``DENSE`` says."""
    outer, item = DENSE[name]
    inner = msgspec.msgpack.encode(item)
    count = (size - 64) // len(inner)
    before, after = msgspec.msgpack.encode(outer).split(msgspec.msgpack.encode("here"))
    return Frame(VERSION_BYTE + before + b"\xdd" + count.to_bytes(4, "big") + inner * count + after)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", DENSE)
def test_dense_header_takes_a_bounded_multiple_of_its_size(name: str) -> None:
    frame = fill_header(name, DENSE_BYTES)
    assert len(frame.header) < measure_decode(frame) <= MOST_GROWTH * len(frame.header)


@pytest.mark.parametrize("opener", [b"\x91", b"\x81\x00", b"\x92\x00", b"\xdc\x00\x01"])
@pytest.mark.parametrize("name", ["step", "result", "hello"])
def test_depth_is_no_way_to_break_the_reader(name: str, opener: bytes) -> None:
    header = encode(SAMPLES[name]).header
    for at in itertools.chain(range(1, 40), [len(header)]):
        with pytest.raises(BadFrame):
            decode_any(Frame(header[:at] + opener * 500_000))


def list_structs(type_: inspect.Type) -> dict[type, inspect.StructType]:
    """Return every struct a value of this type may hold."""
    found: dict[type, inspect.StructType] = {}
    pending = [type_]
    while pending:
        match pending.pop():
            case inspect.StructType() as struct if struct.cls not in found:
                found[struct.cls] = struct
                pending += [field.type for field in struct.fields]
            case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
                pending += types
            case inspect.VarTupleType(item_type=item):
                pending.append(item)
    return found


def test_no_struct_skips_what_it_does_not_know() -> None:
    # Skipping is done by recursion, as deep as the frame says.
    structs = list_structs(inspect.type_info(Header))
    assert {Row, Sampling, Drawn, TensorEntry} < set(structs)
    assert [cls for cls, struct in structs.items() if not struct.forbid_unknown_fields] == []


@pytest.mark.parametrize("name", ["step", "result"])
def test_deep_field_too_many_is_refused_wherever_it_is(name: str) -> None:
    deep = b"\x91" * 500_000 + b"\x90"
    header = msgspec.msgpack.decode(encode(SAMPLES[name]).header[1:])
    for place in walk_lists(header):
        place.append("here")
        before, after = msgspec.msgpack.encode(header).split(b"\xa4here")
        with pytest.raises(BadFrame, match="Expected"):
            decode_any(Frame(VERSION_BYTE + before + deep + after))
        place.pop()


@pytest.mark.parametrize("name", SAMPLES)
def test_every_truncation_is_refused(name: str) -> None:
    frame = encode(SAMPLES[name])
    for size in range(len(frame.header)):
        with pytest.raises(BadFrame):
            decode_any(Frame(frame.header[:size], frame.buffers))


def test_every_single_bit_flip_is_refused_or_is_a_message() -> None:
    frame = encode(make_step(2))
    for bit in range(8 * len(frame.header)):
        header = bytearray(frame.header)
        header[bit // 8] ^= 1 << bit % 8
        classify_frame(Frame(bytes(header), frame.buffers))
