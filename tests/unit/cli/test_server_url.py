from __future__ import annotations

from pathlib import Path

import pytest

from parallax_core.cli.client import DEFAULT_URL
from parallax_core.cli.server_url import find_url
from parallax_core.cli.worker_record import recorded

FORWARDED = "http://127.0.0.1:43210/v1"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    return tmp_path


def test_default_is_the_local_server() -> None:
    assert find_url(None) == DEFAULT_URL


def test_url_that_is_given_counts() -> None:
    assert find_url("http://studio:8000/v1") == "http://studio:8000/v1"


def test_server_that_this_machine_has_joined_comes_first() -> None:
    with recorded("mini/7", "tcp://10.0.0.5:9000", FORWARDED):
        assert find_url(None) == FORWARDED
    assert find_url(None) == DEFAULT_URL


def test_worker_without_an_api_changes_nothing() -> None:
    with recorded("mini/7", "tcp://10.0.0.5:9000"):
        assert find_url(None) == DEFAULT_URL
