from __future__ import annotations

from pathlib import Path

import pytest

from parallax_cluster.deploy.signing_key import ensure_signing_key
from parallax_core.base.errors import ParallaxError


def test_key_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "joined" / "signing.key"
    first = ensure_signing_key(path)
    assert ensure_signing_key(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_signing_key(tmp_path / "other.key") != first


@pytest.mark.parametrize("content", ["", "xy", "00" * 31])
def test_damaged_key_is_told_and_not_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "signing.key"
    path.write_text(content)
    with pytest.raises(ParallaxError, match="cannot be used") as caught:
        ensure_signing_key(path)
    assert "remove it" in caught.value.hint
    assert path.read_text() == content


def test_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ParallaxError, match="cannot be used"):
        ensure_signing_key(tmp_path / "file" / "signing.key")
