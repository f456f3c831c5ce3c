"""Generates the page of the families: which were compared with transformers, on what kinds of layers, and how close.

``python -m tests.rules.familiespage`` writes the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parallax_models.plugin import parallax_register_models

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/families.md"
RESULTS = ROOT / "benchmarks/results"
HEAD = """# Model families

The families that `parallax-models` describes, and whose layers it brings for the backend `torch`.

| Family | Models | Architectures in config.json |
|---|---|---|
"""
PROVED = """
## What was compared

Irregular random models, written by transformers, ran on the backend `torch` in float32: whole, cut in two everywhere,
every layer alone, and in three unequal stages, except where layers have to stay together; in chunks, ragged, forked and
truncated. The largest difference of two log-probabilities from those of transformers in float64 is given as a share of
the largest logit.
In each case 64 greedy tokens were equal. `python -m benchmarks families-torch` does it again.

The same was done on the backend `mlx`, which runs the model files of mlx-lm (`python -m benchmarks families-mlx`).
Settings that they do not read are then as in published models; other settings are refused by name.

| Model type | Stages | Largest difference on `torch` | On `mlx` |
|---|---|---|---|
"""
REFUSED = """
These are refused on `mlx`, for these reasons:

| Model type | Reason |
|---|---|
"""
TAIL = """
vLLM and SGLang run model files of their own: see [backends](../how-to/backends.md).

This page is made of the code and of those records: `python -m tests.rules.familiespage` writes it.
"""


def read_record(backend: str) -> dict[str, dict[str, Any]]:
    """Return what the record of a backend says of each model type."""
    record = json.loads((RESULTS / f"families-{backend}.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = record["families"]
    return found


def describe_mlx(found: dict[str, Any] | None) -> str:
    """Return what was found of a model type on MLX."""
    if found is None:
        return "not compared"
    return "refused" if "refused" in found else f"{found['worst']:.1e}"


def describe_splits(found: dict[str, Any]) -> str:
    """Return how a model was split, and how many of its cuts were refused by name."""
    refused = len(found.get("illegal", ()))
    return f"whole, and {len(found['splits']) - 1} splits" + (f"; {refused} illegal cuts refused" if refused else "")


def write_page() -> str:
    """Return the page."""
    specs = sorted(parallax_register_models(), key=lambda spec: spec.name)
    rows = [
        f"| `{spec.name}` | {spec.summary} | {', '.join(f'`{name}`' for name in spec.architectures)} |"
        for spec in specs
    ]
    mlx = read_record("mlx")
    proved = [
        f"| `{kind}` | {describe_splits(found)} | {found['worst']:.1e} | {describe_mlx(mlx.get(kind))} |"
        for kind, found in sorted(read_record("torch").items())
    ]
    reasons = [f"| `{kind}` | {found['refused']} |" for kind, found in sorted(mlx.items()) if "refused" in found]
    return "\n".join([HEAD + "\n".join(rows), PROVED + "\n".join(proved), REFUSED + "\n".join(reasons), TAIL])


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
    print(PAGE)
