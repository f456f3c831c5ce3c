from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session

from parallax_core.api import SourceContext
from parallax_source_hub.source import HubSource
from tests.support.fakehub import FakeHub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub
        close_session()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "hf"


@pytest.fixture
def source(folder: Path) -> HubSource:
    return HubSource(SourceContext(folder=folder), pauses_s=(0, 0))
