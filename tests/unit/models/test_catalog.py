from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from parallax_core.api import (
    ModelFolder,
    Progress,
    Ref,
    SourceContext,
    SourceSpec,
    StoredModel,
    UnknownName,
    hookimpl,
    silent,
)
from parallax_core.base.errors import ParallaxError, PluginConflict
from parallax_core.base.offline import OFFLINE_VARIABLE
from parallax_core.builtin import plugin as builtin_plugin
from parallax_core.models.catalog import Catalog, Located
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_source_hub import plugin as hub_plugin


class Shelf:
    """A source that has every model."""

    def __init__(self, context: SourceContext) -> None:
        self.folder = context.folder

    def find(self, name: str) -> ModelFolder | None:
        return ModelFolder(path=self.folder / name, ref=f"shelf:{name}")

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        progress("fetch", 1, 1)
        return ModelFolder(path=self.folder / name, ref=f"shelf:{name}")

    def stored(self) -> Sequence[StoredModel]:
        return [StoredModel(name="m", path=self.folder / "m", size_bytes=3)]

    def remove(self, name: str) -> int:
        return len(name)


class ShelfPlugin:
    @hookimpl
    def parallax_register_sources(self) -> list[SourceSpec]:
        spec = SourceSpec(name="shelf", summary="s", factory=Ref("shelf:Shelf"), aliases={"small": "tiny==1"})
        return [spec]


def record(name: str) -> PluginRecord:
    return PluginRecord(name=name, distribution=name, version="1", module=name, state="loaded")


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "shelf", SimpleNamespace(Shelf=Shelf))
    plugins = [(record("core"), builtin_plugin), (record("hub"), hub_plugin), (record("shelf"), ShelfPlugin())]
    return Catalog(PluginHost(plugins))


@pytest.mark.parametrize(
    ("text", "source", "name"),
    [
        ("small", "shelf", "tiny==1"),
        ("shelf:any/thing", "shelf", "any/thing"),
        ("hf:org/name", "hf", "org/name"),
        ("org/name", "hf", "org/name"),
        ("org/name@v1.0", "hf", "org/name@v1.0"),
        ("./here", "file", "./here"),
        ("/abs/path", "file", "/abs/path"),
        ("~/models/x", "file", "~/models/x"),
        ("file:x", "file", "x"),
    ],
)
def test_model_is_located_by_how_it_is_written(catalog: Catalog, text: str, source: str, name: str) -> None:
    assert catalog.locate(text) == Located(source, name)


def test_model_has_one_place_whatever_it_is_called(catalog: Catalog, tmp_path: Path) -> None:
    assert catalog.find_place("small") == catalog.find_place("shelf:tiny==1") == tmp_path / "home/models/shelf/tiny==1"
    assert catalog.find_place("org/name") is None


def test_model_is_qualified_with_its_source(catalog: Catalog) -> None:
    assert catalog.qualify("small") == "shelf:tiny==1"
    assert catalog.qualify("org/name") == "hf:org/name"


def test_source_that_fetches_no_parts_fetches_all(catalog: Catalog, tmp_path: Path) -> None:
    whole = ModelFolder(path=tmp_path / "home" / "models" / "shelf" / "tiny==1", ref="shelf:tiny==1")
    assert catalog.fetch_without_weights("small", silent) == whole
    assert catalog.fetch_tensors("small", lambda _: False, silent) == whole
    assert catalog.find_partial("small") is None
    assert catalog.can_fetch_parts("org/name")
    assert not catalog.can_fetch_parts("small")


def test_folder_that_exists_is_a_folder_even_if_it_looks_like_a_hub_id(catalog: Catalog) -> None:
    Path("org/name").mkdir(parents=True)
    assert catalog.locate("org/name").source == "file"


def test_unknown_model_suggests_the_nearest_alias(catalog: Catalog) -> None:
    with pytest.raises(UnknownName, match="no model named 'smal'") as caught:
        catalog.locate("smal")
    assert caught.value.hint == "did you mean 'small'?"


def test_unknown_scheme_names_the_known_ones(catalog: Catalog) -> None:
    with pytest.raises(UnknownName, match="no model source named 'ftp'") as caught:
        catalog.locate("ftp:x")
    assert "shelf" in caught.value.hint


def test_catalog_asks_the_source_in_its_own_folder(catalog: Catalog, tmp_path: Path) -> None:
    assert catalog.fetch("small", silent).path == tmp_path / "home" / "models" / "shelf" / "tiny==1"
    assert catalog.remove("shelf:abc") == 3
    assert [source for source, _ in catalog.stored()] == ["shelf"]
    assert catalog.aliases() == {"small": "shelf:tiny==1"}


def test_alias_that_two_plugins_offer_is_a_conflict_only_when_it_is_asked_for(tmp_path: Path) -> None:
    class Other:
        @hookimpl
        def parallax_register_sources(self) -> list[SourceSpec]:
            aliases = {"small": "mini", "large": "maxi"}
            return [SourceSpec(name="rack", summary="s", factory=Ref("shelf:Shelf"), aliases=aliases)]

    catalog = Catalog(PluginHost([(record("shelf"), ShelfPlugin()), (record("rack"), Other())]))
    assert catalog.locate("large") == Located("rack", "maxi")
    assert catalog.aliases() == {"large": "rack:maxi", "small": "shelf:tiny==1 or rack:mini"}
    with pytest.raises(PluginConflict, match="alias 'small' is offered by both shelf 1 and rack 1"):
        catalog.locate("small")


def test_offline_nothing_is_fetched_that_is_not_complete(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFFLINE_VARIABLE, "1")
    assert catalog.fetch("small", silent).ref == "shelf:tiny==1"
    monkeypatch.setattr(Shelf, "find", lambda *_: None)
    for fetch in (catalog.fetch, catalog.fetch_without_weights):
        with pytest.raises(ParallaxError, match="shelf:tiny==1 is not complete") as raised:
            fetch("small", silent)
        assert "--offline" in raised.value.hint
    with pytest.raises(ParallaxError, match="not complete"):
        catalog.fetch_tensors("small", lambda _: True, silent)


def test_source_of_this_project_that_is_not_installed_says_how_to_install_it() -> None:
    for name in ("hf:org/name", "org/name"):
        with pytest.raises(UnknownName, match="no model source named 'hf'") as caught:
            Catalog(PluginHost([])).find(name)
        assert caught.value.hint is not None
        assert "pip install parallax-source-hub" in caught.value.hint
