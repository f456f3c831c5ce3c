from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs
import pytest

from parallax_core.config.home import cache_folder, keys_folder, log_folder, models_folder


def test_everything_lies_in_parallax_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    assert models_folder() == tmp_path / "home" / "models"
    assert cache_folder("blas") == tmp_path / "home" / "cache" / "blas"
    assert log_folder().parent == keys_folder().parent == tmp_path / "home"


def test_home_may_begin_with_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PARALLAX_HOME", "~/p")
    assert models_folder() == tmp_path / "p" / "models"


@pytest.mark.parametrize("home", [None, ""])
def test_without_home_the_folders_of_the_platform_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    monkeypatch.delenv("PARALLAX_HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("PARALLAX_HOME", home)
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert models_folder() == platformdirs.user_data_path("parallax") / "models"
    assert cache_folder("x") == platformdirs.user_cache_path("parallax") / "x"
    assert models_folder().is_relative_to(tmp_path)
    assert cache_folder("x").is_relative_to(tmp_path)


def test_the_folder_of_models_is_not_made_by_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    models_folder()
    assert not (tmp_path / "home").exists()


def test_a_cache_folder_is_made_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    before = os.umask(0)
    try:
        folder = cache_folder("keys")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert cache_folder("keys") == folder
