from __future__ import annotations

import shutil
from pathlib import Path

from parallax_cluster.node.profile.disk import TYPICAL, measure_disk, read_free


def test_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    assert measure_disk(tmp_path, 0.05) not in {0.0, TYPICAL}
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_has_a_typical_speed(tmp_path: Path) -> None:
    assert measure_disk(tmp_path / "nowhere") == TYPICAL


def test_free_bytes_of_a_folder_to_come_are_those_of_its_disk(tmp_path: Path) -> None:
    free, total = read_free(tmp_path / "a/b/c"), shutil.disk_usage(tmp_path).total
    assert 0 < free <= total
