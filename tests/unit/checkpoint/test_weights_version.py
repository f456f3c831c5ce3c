"""How weights are named. Real backends state them in tests/conformance, and heads compare them in tests/unit/node."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from parallax_core.api import LayerRange, StagePlan, identify_weights
from parallax_core.checkpoint import digest_cache
from parallax_core.checkpoint.digest import digest_tensors
from parallax_core.checkpoint.weights_version import digest_parts, find_layer, name_part, state_weights
from parallax_core.testing.holes import punch_holes
from parallax_core.testing.model import write_checkpoint

NAMES = ("embed", "layers.0.a", "layers.0.b", "layers.1.a", "layers.1.b", "layers.2.a", "norm")
PARTS = {"embed", "layers.0", "layers.1", "layers.2", "norm"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def write_model(folder: Path) -> Path:
    return write_checkpoint(folder, {}, dict.fromkeys(NAMES, (2, 3)))


def change_last_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x07")


def tune(folder: Path, tensor: str) -> None:
    """Change one number of a tensor, as training does, and nothing else of the model."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    start = len(data) - 24 * (len(NAMES) - NAMES.index(tensor))
    data[start] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("tensor", "part"),
    [
        ("model.layers.3.mlp.experts.5.weight", "model.layers.3"),
        ("transformer.h.11.attn", "transformer.h.11"),
        ("visual.blocks.0.norm", "visual.blocks.0"),
        ("7.weight", "7"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.layers.3", "model.layers.3"),
        ("layer." + "9" * 20 + ".weight", "layer." + "9" * 20 + ".weight"),
        ("", ""),
    ],
)
def test_tensor_of_a_layer_belongs_to_it_and_any_other_to_itself(tensor: str, part: str) -> None:
    assert name_part(tensor) == part


def test_number_of_a_layer_is_the_end_of_its_name() -> None:
    parts = ("model.layers.3", "7", "norm", "norm.9x", "9" * 5000)
    assert [find_layer(part) for part in parts] == [3, 7, None, None, None]


def test_fine_tuned_layer_is_the_one_part_that_differs(tmp_path: Path, folder: Path) -> None:
    tuned = write_model(tmp_path / "tuned")
    before = digest_parts(folder)
    assert before.keys() == PARTS
    assert digest_parts(tuned) == before
    tune(tuned, "layers.1.b")
    after = digest_parts(tuned)
    assert {part for part in PARTS if before[part] != after[part]} == {"layers.1"}


def test_stage_states_its_layers_and_at_the_ends_what_belongs_to_none(folder: Path) -> None:
    plan, parts = StagePlan(model=folder), digest_parts(folder)
    found = [identify_weights(plan, LayerRange(*pair), 3) for pair in ((0, 1), (1, 2), (2, 3), (0, 3))]
    assert [set(each.parts) for each in found] == [
        {"embed", "norm", "layers.0"},
        {"layers.1"},
        {"embed", "norm", "layers.2"},
        PARTS,
    ]
    assert all(parts[part] == digest for each in found for part, digest in each.parts.items())
    assert len({each.version for each in found}) == 4


def test_files_that_the_source_lists_are_stated_beside_the_parts_and_are_no_content(folder: Path) -> None:
    listed = {"model-1-of-2.safetensors": "a", "model-2-of-2.safetensors": "b"}
    plain, plan = StagePlan(model=folder), StagePlan(model=folder, listed_weights=listed)
    one, other = (identify_weights(each, LayerRange(1, 2), 3) for each in (plain, plan))
    assert other.parts == {**one.parts, **listed}
    assert other.version == one.version
    assert state_weights(plan) == {**digest_parts(folder), **listed}


def test_version_is_that_of_the_content_and_not_of_the_file(tmp_path: Path, folder: Path) -> None:
    copy = write_model(tmp_path / "copy")
    (copy / "model.safetensors").rename(copy / "model-00001-of-00001.safetensors")
    plans = [StagePlan(model=folder), StagePlan(model=copy)]
    whole, first = LayerRange(0, 3), LayerRange(0, 1)
    assert len({identify_weights(plan, whole, 3).version for plan in plans}) == 1
    change_last_byte(copy / "model-00001-of-00001.safetensors")
    assert len({identify_weights(plan, whole, 3).version for plan in plans}) == 2
    assert len({identify_weights(plan, first, 3).version for plan in plans}) == 2


def test_layer_of_which_a_tensor_is_not_here_is_not_stated(folder: Path) -> None:
    punch_holes(folder, lambda name: name not in {"layers.1.b", "norm"})
    assert digest_parts(folder).keys() == PARTS - {"layers.1", "norm"}


def test_folder_without_weights_has_no_parts(tmp_path: Path) -> None:
    assert digest_parts(tmp_path) == {}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read, in order."""
    paths: list[Path] = []

    def note(path: Path) -> dict[str, str]:
        paths.append(path)
        return digest_tensors(path)

    monkeypatch.setattr(digest_cache, "digest_tensors", note)
    return paths


def test_file_is_read_once_until_it_changes_even_if_its_time_is_set_back(folder: Path, read: list[Path]) -> None:
    path = folder / "model.safetensors"
    before = digest_parts(folder)
    assert digest_parts(folder) == before
    assert len(read) == 1
    status = path.stat()
    change_last_byte(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert digest_parts(folder)["norm"] != before["norm"]
    assert len(read) == 2


def test_file_fetched_in_part_is_read_every_time(folder: Path, read: list[Path]) -> None:
    punch_holes(folder, lambda name: name == "embed")
    assert digest_parts(folder) == digest_parts(folder)
    assert len(read) == 2


def spoil(home: Path) -> None:
    [path] = home.rglob("weights/*.json")
    path.write_bytes(b"{")


def block(home: Path) -> None:
    [path] = home.rglob("weights/*.json")
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("in the way")


@pytest.mark.parametrize("harm", [spoil, block])
def test_cache_that_is_of_no_use_costs_nothing_but_time(
    home: Path, folder: Path, read: list[Path], harm: Callable[[Path], None]
) -> None:
    before = digest_parts(folder)
    harm(home)
    assert digest_parts(folder) == before
    assert len(read) == 2


@pytest.mark.parametrize("held", [LayerRange(0, 3), LayerRange(0, 2), LayerRange(1, 3)])
def test_lease_has_the_identity_of_its_layers_when_they_were_loaded(folder: Path, held: LayerRange) -> None:
    plan = StagePlan(model=folder, listed_weights={"model.safetensors": "12"})
    parts = identify_weights(plan, held, 3).parts
    leases = [
        LayerRange(start, stop) for start in range(held.start, held.stop) for stop in range(start + 1, held.stop + 1)
    ]
    expected = [identify_weights(plan, layers, 3) for layers in leases]
    tune(folder, "layers.1.b")
    assert [identify_weights(plan, layers, 3, parts) for layers in leases] == expected
    assert identify_weights(plan, LayerRange(1, 2), 3) not in expected
