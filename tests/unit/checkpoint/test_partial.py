from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallax_core.api import ParallaxError, read_tensors, silent
from parallax_core.checkpoint.partial import FetchedRange, name_journal, read_journal, read_present
from parallax_core.checkpoint.reader import find_missing, find_names
from parallax_core.testing.holes import punch_holes
from parallax_core.testing.model import write_checkpoint

SHAPES = {"embed": (4, 2), "layers.0": (2, 2), "layers.1": (2, 2)}
DIGEST = "0" * 64


def write(path: Path) -> Path:
    return write_checkpoint(path / "model", {"model_type": "x"}, SHAPES)


def read(folder: Path, *wanted: str) -> set[str]:
    return {name for name, _ in read_tensors(folder, lambda name: name in wanted, silent)}


def test_file_without_a_journal_is_whole(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert read_journal(folder / "model.safetensors") is None
    assert find_missing(folder) == frozenset()
    assert find_names(folder) == SHAPES.keys()


def test_tensors_in_holes_are_missing(tmp_path: Path) -> None:
    folder = write(tmp_path)
    punch_holes(folder, lambda name: name == "layers.0")
    assert find_missing(folder) == {"embed", "layers.1"}
    assert find_names(folder) == SHAPES.keys()


def test_tensors_in_files_that_are_not_here_are_missing(tmp_path: Path) -> None:
    folder = write(tmp_path)
    files = dict.fromkeys(SHAPES, "model.safetensors") | {"layers.2": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert find_missing(folder) == {"layers.2"}
    assert find_names(folder) == SHAPES.keys() | {"layers.2"}


def test_hole_is_never_read(tmp_path: Path) -> None:
    folder = write(tmp_path)
    punch_holes(folder, lambda name: name == "layers.0")
    assert read(folder, "layers.0") == {"layers.0"}
    with pytest.raises(
        ParallaxError, match=r"part of model is on this machine; missing tensors: 2, such as embed"
    ) as caught:
        read(folder, *SHAPES)
    assert "parallax models pull" in caught.value.hint


@pytest.mark.parametrize(
    "end",
    ["77 99", f"77 99 {DIGEST}", f"77 99 {DIGEST[1:]}\n", f"-7 99 {DIGEST}\n", f"{10**40} 1 {DIGEST}\n", "\udcff\n"],
)
def test_damaged_lines_of_a_journal_count_as_missing(tmp_path: Path, end: str) -> None:
    path = tmp_path / "file"
    text = f"0 10 {DIGEST}\n{end}"
    name_journal(path).write_bytes(text.encode("ascii", errors="surrogateescape"))
    assert read_journal(path) == [FetchedRange(0, 10, DIGEST)]
    present = read_present(path)
    assert present is not None
    assert list(present) == [(0, 10)]
