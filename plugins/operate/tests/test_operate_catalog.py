"""Models on the server's machine are listed and removed, and further ones found, over HTTP."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from parallax_core.api import (
    ModelFolder,
    ParallaxError,
    Ref,
    SourceContext,
    SourceSpec,
    StoredModel,
    UnknownName,
    hookimpl,
)
from parallax_core.plugins.host import PluginHost
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from parallax_operate.catalog import ServerCatalog
from tests.unit.server.dialects import make_core
from tests.unit.server.letters import Site

PUBLISHED: dict[str, Mapping[str, Any]] = {
    "org/tiny": {"parameters": 1000, "is_gated": True, "architectures": ["NobodysForCausalLM"]},
    "org/tiny-more": {"parameters": None, "is_gated": False, "architectures": []},
}
ADMIN = {"X-Api-Key": "key"}


class Shelf:
    """A source with two stored models, and two that can be found."""

    stored_here: ClassVar[dict[str, int]] = {}
    is_gone = False

    def __init__(self, context: SourceContext) -> None:
        self._folder = context.folder

    def find(self, name: str) -> ModelFolder | None:
        """Return a stored model."""
        return ModelFolder(path=self._folder / name, ref=name) if name in self.stored_here else None

    def stored(self) -> list[StoredModel]:
        """Return the stored models."""
        return [
            StoredModel(name=name, path=self._folder / name, size_bytes=size) for name, size in self.stored_here.items()
        ]

    def remove(self, name: str) -> int:
        """Remove a stored model."""
        if name not in self.stored_here:
            raise UnknownName(f"{name} is not here")
        return self.stored_here.pop(name)

    def search(self, text: str, most: int) -> list[dict[str, Any]]:
        """Find models."""
        if self.is_gone:
            raise ParallaxError("nobody answers", "try later")
        found = [{"name": name, "downloads": 3, **told} for name, told in PUBLISHED.items() if text in name]
        return found[:most]

    def list_formats(self, name: str) -> dict[str, int]:
        """List the formats of a model."""
        if name not in PUBLISHED:
            raise UnknownName(f"there is no {name}")
        return {name: 2000, f"{name}:Q4_K_M": 600}


def make_plugins() -> PluginHost:
    spec = SourceSpec(name="shelf", summary="a shelf", factory=Ref(f"{__name__}:Shelf"), aliases={"tiny": "org/tiny"})
    module = types.SimpleNamespace(parallax_register_sources=hookimpl(lambda: [spec]))
    return make_core(shelf=module)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    monkeypatch.setattr(Shelf, "stored_here", {"org/old": 500, "org/used": 700})
    monkeypatch.setattr("parallax_operate.dialect.ServerCatalog", lambda: ServerCatalog(make_plugins()))
    with Site(options=ServerOptions(keys=ApiKeys({"key": "admin", "user": "user"}))) as site:
        yield site


def test_stored_models_are_listed_with_the_room_there_is(site: Site) -> None:
    found = site.client.get("/v1/catalog", headers=ADMIN).json()
    assert [(each["name"], each["size_bytes"]) for each in found["data"]] == [
        ("shelf:org/old", 500),
        ("shelf:org/used", 700),
    ]
    assert (found["searched"], found["aliases"]["tiny"]) == (["shelf"], "shelf:org/tiny")
    assert found["disk_free"] > 0


def test_model_is_removed_unless_it_is_loaded(site: Site) -> None:
    (entry,) = site.models.all
    entry.source = "shelf:org/used"
    refused = site.client.delete("/v1/catalog/shelf:org/used", headers=ADMIN)
    assert (refused.status_code, "unload it first" in refused.text) == (409, True)
    gone = site.client.delete("/v1/catalog/shelf:org/old", headers=ADMIN)
    assert gone.json() == {"name": "shelf:org/old", "freed_bytes": 500}
    assert list(Shelf.stored_here) == ["org/used"]
    assert site.client.delete("/v1/catalog/shelf:org/old", headers=ADMIN).status_code == 404
    assert site.client.delete("/v1/catalog/nobody:x", headers=ADMIN).status_code == 404
    assert site.client.delete(f"/v1/catalog/file:{Path.cwd()}", headers=ADMIN).status_code == 400


def test_models_are_found_elsewhere_with_their_formats(site: Site) -> None:
    found = site.client.get("/v1/catalog/search?text=tiny", headers=ADMIN).json()["data"]
    assert [(each["name"], each["parameters"], each["is_gated"], each["is_known"]) for each in found] == [
        ("org/tiny", 1000, True, False),
        ("org/tiny-more", None, False, None),
    ]
    assert len(site.client.get("/v1/catalog/search?text=tiny&limit=1", headers=ADMIN).json()["data"]) == 1
    formats = site.client.get("/v1/catalog/formats?model=shelf:org/tiny", headers=ADMIN).json()["data"]
    assert formats == [{"name": "org/tiny:Q4_K_M", "size_bytes": 600}, {"name": "org/tiny", "size_bytes": 2000}]
    assert site.client.get("/v1/catalog/formats?model=shelf:org/no", headers=ADMIN).status_code == 404
    assert site.client.get("/v1/catalog/formats?model=file:/x", headers=ADMIN).status_code == 404


def test_place_that_does_not_answer_may_be_asked_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shelf, "is_gone", True)
    answer = site.client.get("/v1/catalog/search?text=x", headers=ADMIN)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "10")
    assert "nobody answers" in answer.text


@pytest.mark.parametrize("place", ["", "/search?text=x", "/formats?model=x", "/shelf:org/old"])
def test_catalog_is_for_administrators(site: Site, place: str) -> None:
    method = "DELETE" if place.startswith("/shelf") else "GET"
    assert site.client.request(method, f"/v1/catalog{place}", headers={"X-Api-Key": "user"}).status_code == 403
