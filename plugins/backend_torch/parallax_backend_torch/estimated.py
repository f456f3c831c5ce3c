"""An adapter for models that no other knows; it imports torch for those that transformers has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from parallax_core.api import ModelShape, Part, Unsupported

MOST_LAYERS, MOST_EXPERTS, MOST = 1_000, 4_096, 2**31
"""The most layers, experts, and other numbers in a config.json: a model is built of them."""
CODE = "auto_map"
"""The setting that names code which a model brings; it is never run."""
HINT = "describe the family: docs/tutorials/add-a-family.md"
LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.")
BEFORE = re.compile(r"(?:.*\.)?embed_tokens\.")
AFTER = re.compile(r"(?:(?:.*\.)?norm|lm_head)\.")


class Estimated:
    """A `ModelAdapter` for any causal model of transformers whose layers keep keys and values, each its own."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Return the shape of a model as it is built without weights; see `parallax_core.api.ModelAdapter`."""
        check_numbers(config)
        check_known(config)
        read: Callable[[str], ModelShape] = import_module("parallax_backend_torch.estimate").read_shape
        return read(json.dumps({name: value for name, value in config.items() if name != CODE}, sort_keys=True))

    def find_part(self, tensor: str) -> Part:
        """Return where a tensor belongs; see `parallax_core.api.ModelAdapter`."""
        if found := LAYER.match(tensor):
            return int(found[1])
        if BEFORE.match(tensor):
            return "before"
        if AFTER.match(tensor):
            return "after"
        raise Unsupported(f"it is not known where a tensor {tensor!r} belongs", HINT)


ESTIMATED = Estimated()


def check_numbers(config: Mapping[str, Any]) -> None:
    """Refuse a config.json of which a model would be built that no machine holds.

    Raises:
        Unsupported: naming the setting.
    """
    for name, value in config.items():
        most = MOST_LAYERS if "layers" in name else MOST_EXPERTS if "experts" in name else MOST
        if isinstance(value, int) and value > most:
            raise Unsupported(f"{name!r} in config.json is {value}, and at most {most} are estimated", HINT)
        if isinstance(value, Mapping):
            check_numbers(value)


def check_known(config: Mapping[str, Any]) -> None:
    """Refuse a model that transformers does not list, without importing it, which takes seconds.

    Raises:
        Unsupported: naming its type.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or f'"{kind}"' not in list_known():
        raise Unsupported(f"transformers does not build this model: it knows no 'model_type' {kind!r}", HINT)


@cache
def list_known() -> str:
    """Return the tables of models of transformers, as text."""
    spec = find_spec("transformers")
    folders = spec.submodule_search_locations or [] if spec else []
    return "".join(
        path.read_text(encoding="utf-8") for each in folders for path in Path(each, "models/auto").glob("*.py")
    )
