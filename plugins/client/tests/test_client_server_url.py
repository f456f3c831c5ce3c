from __future__ import annotations

from pathlib import Path

import pytest

from parallax_client.server_url import find_url
from parallax_core.api.cli import DEFAULT_URL
from tests.unit.plugins.site import Site

FORWARDED = "http://127.0.0.1:43210/v1"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    return tmp_path


def test_default_is_the_local_server() -> None:
    assert find_url(None) == DEFAULT_URL


def test_url_that_is_given_counts() -> None:
    assert find_url("http://studio:8000/v1") == "http://studio:8000/v1"


def test_server_that_this_machine_has_joined_comes_first(site: Site) -> None:
    site.install("joined", f"def find_api():\n    return {FORWARDED!r}\n")
    site.state("joined", {"parallax.joined_api": "joined = joined_plugin:find_api"})
    assert find_url(None) == FORWARDED
