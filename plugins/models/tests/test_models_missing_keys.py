"""A key that config.json lacks is named by every family: each key is taken away in turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import ParallaxError, StagePlan
from parallax_core.testing.blocks import bring_blocks
from parallax_core.testing.model import read_checkpoint
from tests.support.checkpoints import KINDS, MORE, save_family, save_random

IDENTITY = ("architectures", "model_type", "num_hidden_layers")
"""Keys that say which family it is, and how many layers it has: without them there is nothing to name."""
FAMILIES = [kind for kind in KINDS if kind not in {"olmoe", "granitemoe", "qwen3_5"}]
"""Those of the other models that have an adapter."""
TENSOR = re.compile(r"layers\.\d+\.")
"""A part of a tensor's name."""
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def list_lacking(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each key of a config.json, with the config.json that lacks it."""
    for key in config:
        if key not in IDENTITY:
            yield key, {name: value for name, value in config.items() if name != key}


def is_named(message: str, key: str, kind: str) -> bool:
    """Return whether an error names a key and the family, or a tensor that a default of the family does not fit."""
    needed = re.search(rf"has no '\w+', which .* of type {kind}\b", message) is not None
    return needed or f"'{key}'" in message or "tensor" in message or bool(TENSOR.search(message))


def is_refused(backend: Any, folder: Path) -> bool:
    """Return whether MLX refuses a model as it is."""
    try:
        backend.check_model(bring_blocks(StagePlan(model=folder), "mlx"))
    except ParallaxError:
        return True
    return False


def find_unnamed(backend: Any, name: str, folder: Path) -> dict[str, str]:
    """Return the errors that do not name the key, by the key that was taken away; any other exception is raised."""
    plan, found = StagePlan(model=folder, dtype="float32", memory_fraction=0.001), {}
    config = read_checkpoint(folder).config
    for key, lacking in list_lacking(config):
        (folder / "config.json").write_text(json.dumps(lacking))
        try:
            brought = bring_blocks(plan, name)
            backend.check_model(brought)
            if name == "torch":
                backend.open_stage(brought).close()
        except ParallaxError as error:
            if not is_named(error.message, key, config["model_type"]):
                found[key] = error.message
    return found


@pytest.mark.parametrize("kind", [*FAMILIES, *MORE])
@pytest.mark.parametrize("name", ["torch", "mlx"])
def test_key_that_is_missing_is_named_with_its_family(name: str, kind: str, tmp_path: Path) -> None:
    backends = pytest.importorskip(f"parallax_backend_{name}.backend")
    backend = getattr(backends, f"{name.capitalize()}Backend")()
    (save_family if kind in MORE else save_random)(kind, tmp_path)
    if name == "mlx" and is_refused(backend, tmp_path):
        return  # its layers are less regular than those of published models
    assert find_unnamed(backend, name, tmp_path) == {}
