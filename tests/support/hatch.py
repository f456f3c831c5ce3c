"""Loads the build hook of the torch backend, which is a script beside the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def load_build() -> ModuleType:
    """Return the module ``hatch_build``."""
    spec = importlib.util.spec_from_file_location(
        "hatch_build", Path(__file__).parents[2] / "plugins/backend_torch/hatch_build.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
