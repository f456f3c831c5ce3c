from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from parallax_core.api import HttpSurface, PageServer, Settings
from parallax_core.testing.page_server import PageServerConformance
from parallax_core.testing.surface import SurfaceConformance
from parallax_web import plugin
from parallax_web.settings import WebSettings


class Config:
    """The configuration, with settings of the page."""

    def __init__(self, *, enabled: bool) -> None:
        self.settings = WebSettings(enabled=enabled)

    def section(self, schema: type[Any]) -> Any:
        assert schema is WebSettings
        return self.settings


class TestWeb(SurfaceConformance):
    def extend(self, server: HttpSurface) -> None:
        plugin.parallax_extend_server(server)


class TestPageServer(PageServerConformance):
    def make(self) -> PageServer:
        return plugin.parallax_serve_pages()


class Surface:
    """Notes the paths of pages."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def add_page(self, path: str, folder: object) -> None:
        assert folder == plugin.FOLDER
        self.paths.append(path)


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    plugin.parallax_configure(cast("Settings", Config(enabled=True)))


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(("enabled", "paths"), [(True, ["/app"]), (False, [])])
def test_setting_decides_whether_there_is_a_page(enabled: bool, paths: list[str]) -> None:
    plugin.parallax_configure(cast("Settings", Config(enabled=enabled)))
    surface = Surface()
    plugin.parallax_extend_server(cast("Any", surface))
    assert surface.paths == paths
