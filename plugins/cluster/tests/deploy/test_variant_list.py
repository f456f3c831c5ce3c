from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parallax_cluster.config.run import RunSettings
from parallax_cluster.deploy.variant_list import SHIPPED, read_list, read_variants
from parallax_cluster.model_variants import ModelVariants, Variant
from parallax_core.api import UsageError
from parallax_core.api.cli import PluginHost
from parallax_core.api.deployment import Catalog
from parallax_core.testing.model import write_checkpoint

MODEL = "openai/gpt-oss-20b"


def read(catalog: Catalog, *variants: str, model: str = MODEL, **settings: Any) -> ModelVariants | None:
    return read_variants(RunSettings(model=model, variant=variants, **settings), catalog)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog(PluginHost.prepare())


def test_variants_come_from_the_command_a_file_and_the_catalogue(catalog: Catalog, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'[models."{MODEL}".torch]\nmodel = "org/x"\nweights = {{ "model.layers.0" = "digest" }}\n')
    found = read(catalog, "catalogue", str(file), "vllm=org/y")
    assert found is not None
    assert found.by_backend == {
        "mlx": Variant("mlx-community/gpt-oss-20b-MXFP4-Q8"),
        "torch": Variant("org/x", {"model.layers.0": "digest"}),
        "vllm": Variant("org/y"),
    }
    assert (found.are_mixed, found.goes_on) == (False, False)
    assert found.read(found.by_backend["torch"]) == {"model.layers.0": "digest"}
    assert read(catalog) is None
    assert read(catalog, mix_weights=True, model=f"hf:{MODEL}") is not None


def test_digests_of_the_copy_on_this_machine_are_read(catalog: Catalog, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "copy", {}, {"model.layers.0.a": (2, 3)})
    found = read(catalog, f"mlx={folder}")
    assert found is not None
    assert found.read(found.by_backend["mlx"]).keys() == {"model.layers.0"}


def test_catalogue_has_the_models_of_its_date() -> None:
    shipped = read_list(SHIPPED)
    assert (shipped.date, len(shipped.models)) == ("2026-11-29", 47)
    assert all(each["mlx"].model != name for name, each in shipped.models.items())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mlx=", "is neither BACKEND=MODEL"),
        ("org/name", "is neither BACKEND=MODEL"),
        ("none.json", "is not a file of variants"),
        ("wrong.json", "is not a file of variants: .*strange"),
        ("other.json", "has no variants of openai/gpt-oss-20b"),
    ],
)
def test_what_names_no_variant_is_refused(catalog: Catalog, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "wrong.json").write_text(json.dumps({"models": {MODEL: {"mlx": {"model": "a", "strange": 1}}}}))
    (tmp_path / "other.json").write_text(json.dumps({"models": {}}))
    with pytest.raises(UsageError, match=words):
        read(catalog, str(tmp_path / text) if text.endswith(".json") else text)


def test_mixed_answers_need_mixed_weights(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="needs --mix-weights"):
        read(catalog, "catalogue", mix_answers=True)
