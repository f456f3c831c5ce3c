"""The tiny model, and a pip that sees nothing but its wheel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from parallax_core.api import SourceContext
from parallax_source_pypi.source import PypiSource
from tests.support.tinyllama import Links, TinyLlama


@pytest.fixture
def llama() -> TinyLlama:
    return TinyLlama()


@pytest.fixture
def gguf_bytes(llama: TinyLlama, tmp_path: Path) -> bytes:
    return llama.write(tmp_path / "tiny.gguf").read_bytes()


@pytest.fixture
def clean_pip(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Take away every setting of pip, and with them its index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return monkeypatch


@pytest.fixture
def links(tmp_path: Path, clean_pip: pytest.MonkeyPatch) -> Links:
    folder = tmp_path / "links"
    folder.mkdir()
    clean_pip.setenv("PIP_NO_INDEX", "1")
    clean_pip.setenv("PIP_FIND_LINKS", str(folder))
    return Links(folder)


@pytest.fixture
def tiny(links: Links, gguf_bytes: bytes) -> Links:
    """The same folder, with the tiny model in it."""
    links.add_wheel({"tiny/model.gguf": gguf_bytes, "tiny/__init__.py": b"raise SystemExit('was imported')"})
    return links


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the source keeps its models; not made yet."""
    return tmp_path / "home" / "pypi"


@pytest.fixture
def source(root: Path) -> PypiSource:
    return PypiSource(SourceContext(folder=root))


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def links_over_http(links: Links, clean_pip: pytest.MonkeyPatch) -> Iterator[Links]:
    """The same folder as a page of links, so that pip has to download."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(links.folder))) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        clean_pip.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_port}/")
        yield links
        server.shutdown()
        thread.join()
