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
RECORD = ROOT / "benchmarks/results/families-torch.json"
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

| Model type | Stages | Largest difference |
|---|---|---|
"""
TAIL = """
The MLX backend runs the model files of mlx-lm, and vLLM and SGLang their own: see [backends](../how-to/backends.md).

This page is made of the code and of that record: `python -m tests.rules.familiespage` writes it.
"""


def read_record() -> dict[str, dict[str, Any]]:
    """Return what the record says of each model type."""
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))["families"]
    return found


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
    proved = [
        f"| `{kind}` | {describe_splits(found)} | {found['worst']:.1e} |"
        for kind, found in sorted(read_record().items())
    ]
    return HEAD + "\n".join(rows) + "\n" + PROVED + "\n".join(proved) + "\n" + TAIL


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
    print(PAGE)
