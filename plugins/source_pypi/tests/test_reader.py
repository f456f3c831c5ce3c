from __future__ import annotations

import contextlib
import struct
import tempfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallax_core.api import ParallaxError, Unsupported, silent
from parallax_source_pypi.convert import convert_gguf
from parallax_source_pypi.reader import open_gguf
from tests.support.tinyllama import TinyLlama

HEADER = struct.Struct("<4sIQQ")


def convert_bytes(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "x.gguf", Path(folder) / "model"
        source.write_bytes(data)
        target.mkdir()
        convert_gguf(source, target, silent, "convert")


def test_reader_agrees_with_the_reader_of_the_gguf_package(llama: TinyLlama, tmp_path: Path) -> None:
    llama.packing = gguf.GGMLQuantizationType.Q8_0
    path = llama.write(tmp_path / "tiny.gguf")
    other = gguf.GGUFReader(path)
    with open_gguf(path) as ours:
        names = [name for name in other.fields if not name.startswith("GGUF.")]
        assert {name: other.fields[name].contents() for name in names} == ours.metadata
        assert [tensor.name for tensor in other.tensors] == list(ours.tensors)
        for theirs in other.tensors:
            tensor = ours.tensors[theirs.name]
            assert tensor.shape == tuple(reversed(theirs.shape.tolist()))
            np.testing.assert_array_equal(ours.read_rows(tensor).ravel(), theirs.data.view(np.uint8).ravel())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it ends after 0 bytes"),
        (b"PK\x03\x04" + bytes(60), "does not begin with the letters GGUF"),
        (HEADER.pack(b"GGUF", 3, 1 << 60, 0), "it ends after 24 bytes"),
        (HEADER.pack(b"GGUF", 3, 0, (1 << 64) - 1), "it ends after 24 bytes"),
        (HEADER.pack(b"GGUF", 3, 0, 1) + struct.pack("<Q", 1 << 63), "it ends after 32 bytes"),
        (HEADER.pack(b"GGUF", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 62), "it ends after"),
        (HEADER.pack(b"GGUF", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 1 << 62), "unknown type 9"),
        (HEADER.pack(b"GGUF", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 77), "unknown type 77"),
        (HEADER.pack(b"GGUF", 3, 0, 1) + struct.pack("<Q1sI", 1, b"\xff", 4), "is not UTF-8"),
        (HEADER.pack(b"GGUF", 3, 0, 2) + 2 * struct.pack("<Q1sII", 1, b"k", 4, 0), "it has 'k' twice"),
        (HEADER.pack(b"GGUF", 3, 1, 0) + struct.pack("<Q1sI", 1, b"t", 9), "has 9 dimensions"),
        (HEADER.pack(b"GGUF", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 1 << 62, 0, 0), "reaches beyond"),
        (HEADER.pack(b"GGUF", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 33, 8, 0), r"Q8_0 has the shape \[33\]"),
    ],
)
@pytest.mark.timeout(10)
def test_damage_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(ParallaxError, match=reason) as caught:
        convert_bytes(data)
    assert caught.value.hint


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_other_versions_and_byte_orders_are_refused(version: int) -> None:
    with pytest.raises(Unsupported, match=f"GGUF version {version} "):
        convert_bytes(HEADER.pack(b"GGUF", version, 0, 0))


def test_every_truncation_is_noticed(gguf_bytes: bytes) -> None:
    for length in [*range(0, 2000, 37), *range(2000, len(gguf_bytes) - 32, 1999)]:
        with pytest.raises(ParallaxError, match="damaged"):
            convert_bytes(gguf_bytes[:length])


WHOLE = st.integers(0, (1 << 64) - 1).map(lambda value: struct.pack("<Q", value))
EXTREME = st.sampled_from([b"\xff" * 8, b"\x00" * 8, struct.pack("<Q", 1 << 62), struct.pack("<Q", 1 << 31)])
PATCH = st.tuples(st.floats(0, 1), st.one_of(st.binary(min_size=1, max_size=4), WHOLE, EXTREME))


@settings(max_examples=250, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PATCH, min_size=1, max_size=4))
def test_mutations_convert_or_are_refused(gguf_bytes: bytes, patches: list[tuple[float, bytes]]) -> None:
    data = bytearray(gguf_bytes)
    header = gguf_bytes.index(b"blk.1.ffn_down.weight") + 60
    for place, patch in patches:
        start = int(place**2 * header)
        data[start : start + len(patch)] = patch
    # Any other exception fails the test; so does a warning.
    with contextlib.suppress(ParallaxError):
        convert_bytes(bytes(data))


def test_unmutated_file_converts(gguf_bytes: bytes) -> None:
    convert_bytes(gguf_bytes)
