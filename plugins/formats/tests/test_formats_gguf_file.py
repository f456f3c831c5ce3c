from __future__ import annotations

import contextlib
import struct
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallax_core.api import ParallaxError, Unsupported
from parallax_formats.gguf import file as limits
from parallax_formats.gguf import open_gguf, read_rows
from tests.support.tinyllama import TinyLlama

HEADER = struct.Struct("<4sIQQ")


@pytest.fixture
def llama() -> TinyLlama:
    return TinyLlama()


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return TinyLlama().write(tmp_path_factory.mktemp("tiny") / "tiny.gguf").read_bytes()


def read_bytes(data: bytes) -> None:
    """Read a file, and all that is in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        path.write_bytes(data)
        with open_gguf(path) as found:
            for tensor in found.tensors.values():
                read_rows(found.read_rows(tensor), tensor.kind)


def make_header(*tensors: tuple[bytes, int, int, int], count: int | None = None) -> bytes:
    """Return a file without values: of each tensor the name, the width of its one axis, the type and the offset."""
    infos = [struct.pack(f"<Q{len(name)}sIQIQ", len(name), name, 1, *rest) for name, *rest in tensors]
    data = HEADER.pack(b"GGUF", 3, len(tensors) if count is None else count, 0) + b"".join(infos)
    return data + bytes(-len(data) % 32)


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
        (make_header((b"a", 8, 0, 0), (b"b", 8, 0, 16)) + bytes(64), "the tensors 'a' and 'b' overlap"),
        (make_header((b"a", 8, 0, 0), (b"b", 8, 0, 0)) + bytes(64), "the tensors 'a' and 'b' overlap"),
        *(
            (make_header((name, 8, 0, 0)) + bytes(64), "a tensor has the name")
            for name in (b"../../etc/passwd", b"/etc/x", b"a..b", b"", b"a\x00b", b"a b", b"..", "\u202e".encode())
        ),
        (make_header((b"a", 8, 0, 0), count=100_000) + bytes(2_000_000), "it has 100000 tensors, and at most 50000"),
        (HEADER.pack(b"GGUF", 3, 0, 10**6) + bytes(100), "it ends after"),
    ],
)
@pytest.mark.timeout(10)
def test_damage_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(ParallaxError, match=reason) as caught:
        read_bytes(data)
    assert caught.value.hint


def test_header_is_bounded(gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_VALUES", 500)
    with pytest.raises(ParallaxError, match="more than 500 values"):
        read_bytes(gguf_bytes)
    monkeypatch.setattr(limits, "MOST_VALUES", 10_000)
    monkeypatch.setattr(limits, "MOST_HEADER_BYTES", 5_000)
    with pytest.raises(ParallaxError, match="more than 5000 bytes"):
        read_bytes(gguf_bytes)


def test_many_tensors_are_read_in_bounded_time() -> None:
    tensors = [(f"t.{number}".encode(), 8, 0, 32 * number) for number in range(50_000)]
    began = time.process_time()
    read_bytes(make_header(*tensors) + bytes(32 * 50_000))
    assert time.process_time() - began < 15


def split(llama: TinyLlama, folder: Path, count: int) -> list[Path]:
    """Write a model as several files, as llama.cpp's gguf-split does: the values are in the first."""
    names, paths = list(llama.tensors), []
    for number in range(count):
        values = llama.values if number == 0 else {}
        told: dict[str, object] = {"split.no": number, "split.count": count, "split.tensors.count": len(names)}
        part = TinyLlama(values=values | told, tensors={name: llama.tensors[name] for name in names[number::count]})
        paths.append(part.write(folder / f"tiny-{number + 1:05d}-of-{count:05d}.gguf"))
    return paths


def test_files_of_a_split_model_are_one(llama: TinyLlama, tmp_path: Path) -> None:
    for path in split(llama, tmp_path, 3):
        with open_gguf(path) as found:
            assert found.tensors.keys() == llama.tensors.keys()
            assert found.metadata["llama.block_count"] == 2
            for name, values in llama.tensors.items():
                rows = read_rows(found.read_rows(found.tensors[name]), found.tensors[name].kind)
                np.testing.assert_array_equal(rows.reshape(values.shape), values)


def test_split_models_that_are_not_whole_are_refused(llama: TinyLlama, tmp_path: Path) -> None:
    first, second, third = split(llama, tmp_path, 3)
    third.unlink()
    with pytest.raises(ParallaxError, match="of the 3 files of tiny, 1 are missing, such as tiny-00003-of-00003"):
        open_gguf(first).__enter__()
    third.write_bytes(second.read_bytes())
    with pytest.raises(ParallaxError, match="file 3 of 3 says that it is number 1 of 3"):
        open_gguf(first).__enter__()
    odd = first.rename(tmp_path / "odd-00005-of-00003.gguf")
    with pytest.raises(ParallaxError, match="file 5 of 3"):
        open_gguf(odd).__enter__()


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_other_versions_and_byte_orders_are_refused(version: int) -> None:
    with pytest.raises(Unsupported, match=f"GGUF version {version} "):
        read_bytes(HEADER.pack(b"GGUF", version, 0, 0))


def test_every_truncation_is_noticed(gguf_bytes: bytes) -> None:
    for length in [*range(0, 2000, 37), *range(2000, len(gguf_bytes) - 32, 1999)]:
        with pytest.raises(ParallaxError, match="damaged"):
            read_bytes(gguf_bytes[:length])


WHOLE = st.integers(0, (1 << 64) - 1).map(lambda value: struct.pack("<Q", value))
EXTREME = st.sampled_from([b"\xff" * 8, b"\x00" * 8, struct.pack("<Q", 1 << 62), struct.pack("<Q", 1 << 31)])
PATCH = st.tuples(st.floats(0, 1), st.one_of(st.binary(min_size=1, max_size=4), WHOLE, EXTREME))


@settings(max_examples=250, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PATCH, min_size=1, max_size=4))
def test_mutations_are_read_or_refused(gguf_bytes: bytes, patches: list[tuple[float, bytes]]) -> None:
    data = bytearray(gguf_bytes)
    header = gguf_bytes.index(b"blk.1.ffn_down.weight") + 60
    for place, patch in patches:
        start = int(place**2 * header)
        data[start : start + len(patch)] = patch
    # Any other exception fails the test; so does a warning.
    with contextlib.suppress(ParallaxError):
        read_bytes(bytes(data))


def test_unmutated_file_is_read(gguf_bytes: bytes) -> None:
    read_bytes(gguf_bytes)
