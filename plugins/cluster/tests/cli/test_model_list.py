from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parallax_cluster.cli.model_list import SHIPPED, ListedModel, read_list, read_shape
from parallax_core.api import ParallaxError, UsageError
from parallax_core.api.cli import PluginHost
from parallax_core.api.deployment import count_weights

FORM = {"format": "Q8_0", "model": "org/name-GGUF:Q8_0", "bits": 8.5}


def write(path: Path, *models: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"models": models}))
    return path


def test_shipped_list_has_a_date_and_models_in_several_formats() -> None:
    found = read_list(())
    assert found.date == json.loads(SHIPPED.read_text(encoding="utf-8"))["date"]
    assert sum(len(model.forms) > 1 for model in found.models) >= 15
    assert len({model.name for model in found.models}) == len(found.models)
    assert len({form.model for model in found.models for form in model.forms}) >= 60


def test_file_adds_models_and_replaces_those_of_the_same_name(tmp_path: Path) -> None:
    added = {"name": "Mine", "params": "2B", "layers": 20, "forms": [FORM]}
    paths = write(tmp_path / "a.json", added), write(tmp_path / "b.json", {"name": "Qwen3-8B", "forms": [FORM]})
    found = {model.name: model for model in read_list(paths).models}
    assert len(found) == len(read_list(()).models) + 1
    assert [form.model for form in found["Qwen3-8B"].forms] == [FORM["model"]]
    assert count_weights(read_shape(PluginHost.prepare(), found["Mine"])) == pytest.approx(2e9, rel=0.01)


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([], r"a\.json: models: "),
        ([{"name": "x", "forms": [FORM | {"bits": 0}]}], r"models\[0\]\.forms\[0\]\.bits"),
        ([{"name": "x", "forms": [FORM | {"repo": "y"}]}], "unknown field `repo`"),
        ([{"name": "x", "layers": -1}], r"models\[0\]\.layers"),
        ([{"forms": []}], "missing required field `name`"),
    ],
)
def test_wrong_field_of_a_file_is_named(tmp_path: Path, models: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_list([write(tmp_path / "a.json", *models)])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "neither a config nor params and layers"),
        ({"params": "many", "layers": 3}, "params is 'many'"),
        ({"params": "2B", "layers": 3, "active": "3B"}, "more than"),
        ({"config": {"architectures": ["Abacus"]}}, "knows the architecture of 'x'"),
        ({"config": {"architectures": ["LlamaForCausalLM"]}}, "config.json has no"),
    ],
)
def test_model_without_a_shape_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ParallaxError, match=words):
        read_shape(PluginHost.prepare(), ListedModel(name="x", **changes))
