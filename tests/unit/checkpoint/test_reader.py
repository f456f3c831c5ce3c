from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from parallax_core.api import ParallaxError, Tensor, Unit, Unsupported, read_config, read_tensors, silent
from parallax_core.testing.model import write_checkpoint

SHAPES = {"a": (2, 3), "b": (4,), "c": ()}


def write(folder: Path) -> Path:
    return write_checkpoint(folder / "model", {"model_type": "x"}, SHAPES)


def read(folder: Path, *wanted: str) -> dict[str, Tensor]:
    return dict(read_tensors(folder, lambda name: name in wanted, silent))


def rewrite(folder: Path, **changes: object) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["b"] |= changes
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data[start:])


def test_tensors_are_those_that_were_written(tmp_path: Path) -> None:
    found = read(write(tmp_path), "a", "c")
    assert {name: tensor.shape for name, tensor in found.items()} == {"a": (2, 3), "c": ()}
    assert all(tensor.dtype == "float32" for tensor in found.values())


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\x00\x00\x80\x3f")
    assert bytes(read(folder, "c")["c"].data) == b"\x00\x00\x80\x3f"
    assert bytes(read(folder, "a")["a"].data) == bytes(24)


def test_progress_counts_what_is_wanted(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []

    def note(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        seen.append((done, total))

    list(read_tensors(write(tmp_path), lambda name: name != "b", note))
    assert seen == [(0, 28), (24, 28), (28, 28)]


@pytest.mark.parametrize("keep", [0, 4, 12, 60, -1])
def test_file_that_was_cut_is_damaged(tmp_path: Path, keep: int) -> None:
    folder = write(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ParallaxError, match="is damaged") as caught:
        read(folder, "a")
    assert caught.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [5]},
        {"shape": "x"},
        {"shape": [-4]},
        {"shape": [float("inf")]},
        {"data_offsets": [-16, 0]},
        {"data_offsets": [24]},
    ],
)
def test_header_that_makes_no_sense_is_damage(tmp_path: Path, changes: dict[str, object]) -> None:
    folder = write(tmp_path)
    rewrite(folder, **changes)
    with pytest.raises(ParallaxError, match="is damaged") as caught:
        read(folder, "a", "b")
    assert caught.value.hint


def test_header_of_gigabytes_is_damage_and_not_read(tmp_path: Path) -> None:
    path = write(tmp_path) / "model.safetensors"
    with path.open("r+b") as file:
        file.write((2**30).to_bytes(8, "little"))
        file.truncate(2**30 + 100)  # most of it is a hole, and takes no room
    tracemalloc.start()
    try:
        with pytest.raises(ParallaxError, match="its header has 1073741824 bytes; at most 100000000 are allowed"):
            read(path.parent, "a")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_unknown_dtype_matters_only_where_it_is_wanted(tmp_path: Path) -> None:
    folder = write(tmp_path)
    rewrite(folder, dtype="F4")
    assert list(read(folder, "a")) == ["a"]
    with pytest.raises(Unsupported, match="b has the dtype F4"):
        read(folder, "b")


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    for call in (lambda: read(tmp_path, "a"), lambda: read_config(tmp_path), lambda: read_config(tmp_path / "no")):
        with pytest.raises(ParallaxError) as caught:
            call()
        assert caught.value.hint


def test_stale_index_beside_one_file_hides_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path)
    index = {"weight_map": dict.fromkeys(SHAPES, "model-00001-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read(folder, "a").keys() == {"a"}
