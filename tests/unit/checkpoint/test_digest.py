from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.checkpoint.digest import PIECE_BYTES, PIECES, digest_tensors, list_pieces
from parallax_core.checkpoint.reader import find_locations
from parallax_core.testing.holes import punch_holes
from parallax_core.testing.model import write_checkpoint

LIMIT = PIECES * PIECE_BYTES
SHAPES = {"small": (4, 2), "limit": (LIMIT // 4,), "large": (LIMIT, 3)}


def write(folder: Path) -> Path:
    return write_checkpoint(folder / "model", {}, SHAPES) / "model.safetensors"


def change(path: Path, tensor: str, offset: int) -> None:
    """Change a byte of a tensor."""
    [place] = [place for place in find_locations(path) if place.name == tensor]
    with path.open("r+b") as file:
        file.seek(place.start + offset % len(place))
        value = file.read(1)[0]
        file.seek(place.start + offset % len(place))
        file.write(bytes([value ^ 1]))


@pytest.mark.parametrize(
    ("tensor", "offset"),
    [("small", 0), ("small", -1), ("small", 13), ("limit", 0), ("limit", LIMIT // 2 + 1), ("large", 0), ("large", -1)],
)
def test_change_of_a_tensor_shows_in_its_digest_and_no_other(tmp_path: Path, tensor: str, offset: int) -> None:
    path = write(tmp_path)
    before = digest_tensors(path)
    change(path, tensor, offset)
    after = digest_tensors(path)
    assert before.keys() == SHAPES.keys()
    assert {name for name in SHAPES if before[name] != after[name]} == {tensor}


def test_change_at_any_of_the_places_that_are_read_shows(tmp_path: Path) -> None:
    path = write(tmp_path)
    before = digest_tensors(path)["large"]
    for start, size in list_pieces(12 * LIMIT):
        for offset in (start, start + size - 1):
            change(path, "large", offset)
            assert digest_tensors(path)["large"] != before
            change(path, "large", offset)
    assert digest_tensors(path)["large"] == before


@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + PIECE_BYTES, 10**9, 10**12 + 7])
def test_pieces_are_all_of_a_small_tensor_and_reach_both_ends_of_a_large_one(size: int) -> None:
    pieces = list(list_pieces(size))
    assert sum(length for _, length in pieces) == min(size, LIMIT)
    assert (pieces[0][0], sum(pieces[-1])) == (0, size)
    assert all(one[0] + one[1] <= other[0] or size < 2 * LIMIT for one, other in pairwise(pieces))


def test_shape_counts_as_content(tmp_path: Path) -> None:
    one = write_checkpoint(tmp_path / "one", {}, {"x": (2, 3)}) / "model.safetensors"
    other = write_checkpoint(tmp_path / "other", {}, {"x": (3, 2)}) / "model.safetensors"
    assert one.read_bytes()[-24:] == other.read_bytes()[-24:]
    assert digest_tensors(one) != digest_tensors(other)


def test_tensor_that_was_not_fetched_has_no_digest(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = digest_tensors(path)
    punch_holes(path.parent, lambda name: name != "small")
    assert digest_tensors(path) == {name: whole[name] for name in ("limit", "large")}


def test_damaged_file_has_none(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ParallaxError, match="is damaged"):
        digest_tensors(path)
