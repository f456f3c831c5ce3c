from __future__ import annotations

from pathlib import Path

import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.builtin import plugin as builtin_plugin
from parallax_core.models.catalog import Catalog
from parallax_core.node.worker.allowed_models import AllowedModels
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_source_hub import plugin as hub_plugin
from parallax_source_pypi import plugin as pypi_plugin


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """Return a catalog, where there are models outside the home and in it; the working folder is outside, too."""
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    for place in ("home/models/hf/org--model", "outside/model", "outside/org"):
        (tmp_path / place).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "outside")
    plugins = {"core": builtin_plugin, "hub": hub_plugin, "pypi": pypi_plugin}
    records = [
        (PluginRecord(name=name, distribution=name, version="1", module=name, state="loaded"), plugin)
        for name, plugin in plugins.items()
    ]
    return Catalog(PluginHost(records))


NAMES = ("org/model", "hf:org/model", "org/model@main", "smollm2-135m", "pypi:llm-x==1")
PATHS = (
    *("/etc", "{here}/outside/model", "~/x", "./model", "model", "file:{here}/outside/model", "file:model"),
    *("gguf:{here}/outside/x.gguf", "gguf:x.gguf", "{here}/home/models/../../outside/model", "org/../model"),
)


def may_load(catalog: Catalog, model: str, *allowed: str) -> bool:
    try:
        AllowedModels(catalog, allowed).check(model)
    except ParallaxError as error:
        refusal = error
    else:
        return True
    assert "this node does not allow servers to load" in refusal.message
    assert "--allow-model" in refusal.hint
    return False


@pytest.mark.parametrize("model", NAMES)
def test_model_that_is_fetched_by_name_is_loaded_for_a_head(catalog: Catalog, model: str) -> None:
    assert may_load(catalog, model)


@pytest.mark.parametrize("model", PATHS)
def test_folder_of_the_machine_is_not_read_for_a_head(catalog: Catalog, tmp_path: Path, model: str) -> None:
    model = model.format(here=tmp_path)
    assert not may_load(catalog, model)
    assert not may_load(catalog, model, "org/*", "hf:*", "pypi:*", "file:*", "gguf:*")
    assert may_load(catalog, model, "*")


def test_folder_is_read_that_is_allowed_or_where_models_are_kept(catalog: Catalog, tmp_path: Path) -> None:
    assert may_load(catalog, f"{tmp_path}/home/models/hf/org--model")
    assert not may_load(catalog, f"{tmp_path}/home/models/hf/org--model", "org/*")
    outside = f"{tmp_path}/outside"
    assert may_load(catalog, f"{outside}/model", outside)
    assert may_load(catalog, f"gguf:{outside}/x.gguf", f"{outside}/x.gguf")
    assert not may_load(catalog, f"{outside}2/model", outside)


def test_link_out_of_an_allowed_folder_is_not_followed(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "home/models/link").symlink_to("/etc")
    assert not may_load(catalog, f"{tmp_path}/home/models/link")


def test_patterns_narrow_what_is_fetched(catalog: Catalog) -> None:
    allowed = ("org/*", "pypi:llm-*", "smollm2-135m")
    assert [may_load(catalog, name, *allowed) for name in (*NAMES, "other/model", "pypi:else==1", "hf:other/x")] == [
        True,
        True,
        True,
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("model", ["", "no such model", "x:y", "/\0"])
def test_what_is_no_model_is_an_error(catalog: Catalog, model: str) -> None:
    with pytest.raises(ParallaxError):
        AllowedModels(catalog).check(model)
