"""The kit for extensions of the server passes good ones, and catches a fault of each sort."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi import APIRouter

from parallax_core.api import HttpSurface, ServerStatus, needs_role
from parallax_core.testing.surface import SurfaceConformance
from parallax_server_ollama.plugin import parallax_extend_server as extend_as_ollama
from tests.conformance.harness import find_failures, list_tests

PAGE = '<!doctype html><link rel="stylesheet" href="style.css"><script src="app.js"></script><img src="data:,">'
FILES = {"index.html": PAGE, "style.css": "a {}", "app.js": "fetch('/v1/models')"}


class TestOllama(SurfaceConformance):
    """Routes of another API pass."""

    def extend(self, server: HttpSurface) -> None:
        extend_as_ollama(server)


def make_router(answer: Callable[[], object]) -> APIRouter:
    router = APIRouter()
    router.add_api_route("/kit/do", answer, methods=["POST"])
    return router


def write_page(**files: str | None) -> Path:
    """Write the files of a page into a new folder; None leaves one out."""
    folder = Path(tempfile.mkdtemp(dir=FOLDERS[-1]))
    for name, text in {**FILES, **{name.replace("_", "."): text for name, text in files.items()}}.items():
        if text is not None:
            (folder / name).write_text(text)
    return folder


FOLDERS: list[Path] = []


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> Iterator[None]:
    FOLDERS.append(tmp_path)
    yield
    FOLDERS.clear()


class TestPage(SurfaceConformance):
    """A page with a route passes."""

    def extend(self, server: HttpSurface) -> None:
        @needs_role("user")
        def answer() -> int:
            return len(server.status().models)

        assert server.status() == ServerStatus(health=server.status().health, models=())
        server.add_page("/chat", write_page())
        server.add_router(make_router(answer))


def open_to_all() -> str:
    return "done"


def add_nothing(server: HttpSurface) -> None:
    del server


def add_failing(server: HttpSurface) -> None:
    server.add_page("/v1", write_page())


def add_unstated(server: HttpSurface) -> None:
    server.add_router(make_router(lambda: "done"))


def add_open(server: HttpSurface) -> None:
    server.add_router(make_router(needs_role(None)(open_to_all)))


def add_inline(server: HttpSurface) -> None:
    server.add_page("/chat", write_page(index_html="<script>alert(1)</script>"))


def add_handler(server: HttpSurface) -> None:
    server.add_page("/chat", write_page(index_html='<p class="x" onclick="go()">'))


def add_foreign(server: HttpSurface) -> None:
    server.add_page("/chat", write_page(index_html='<script src="https://cdn.example/x.js"></script>'))


def add_missing(server: HttpSurface) -> None:
    server.add_page("/chat", write_page(style_css=None))


def add_odd(server: HttpSurface) -> None:
    server.add_page("/chat", write_page(index_html='<script src="app.ts"></script>', app_ts="let a: number"))


EXTENDED = "test_server_is_extended"
ROLES = "test_routes_that_change_something_state_their_roles"
REFUSED, FOUND = "test_pages_have_nothing_that_browsers_would_refuse", "test_pages_find_what_they_load"


@pytest.mark.parametrize(
    ("add", "tests", "words"),
    [
        (add_nothing, {EXTENDED}, "it adds nothing"),
        (add_failing, {EXTENDED, ROLES, REFUSED, FOUND}, "'/v1' is no path for a page"),
        (add_unstated, {ROLES}, "/kit/do states no role"),
        (add_open, {ROLES}, "/kit/do changes something without a key"),
        (add_inline, {REFUSED}, "/chat/ has <script> in it"),
        (add_handler, {REFUSED}, "onclick="),
        (add_foreign, {REFUSED}, "/chat/ loads https://cdn.example/x.js"),
        (add_missing, {FOUND}, "/chat/ loads style.css, which does not exist"),
        (add_odd, {FOUND}, "/chat/ loads app.ts, whose type browsers do not know"),
    ],
)
def test_kit_catches_a_fault(add: Callable[[HttpSurface], None], tests: set[str], words: str) -> None:
    class Kit(SurfaceConformance):
        def extend(self, server: HttpSurface) -> None:
            add(server)

    found = find_failures(Kit)
    assert found.keys() == tests
    assert all(words in fault for fault in found.values())


def test_every_test_of_the_kit_is_shown_to_catch_something() -> None:
    assert set(list_tests(SurfaceConformance)) == {EXTENDED, ROLES, REFUSED, FOUND}
