"""Reads how rope is scaled, which config.json and GGUF files state differently."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from parallax_formats.gguf import damaged, read_rows
from parallax_source_pypi.errors import refuse

if TYPE_CHECKING:
    from parallax_source_pypi.settings import Model

Json = dict[str, object]
ROPE_KEYS = (
    *("rope.dimension_count", "rope.freq_base", "rope.freq_base_swa", "rope.dimension_count_swa"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_log_multiplier"),
)
BASE, LOCAL_BASE = 10_000.0, 10_000.0
"""The bases of rope if a file gives none; the second for layers of Gemma 3 with windows."""
TABLE = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
TRAINED = tuple(2**power for power in range(4, 20))
"""Contexts that models with the scaling of Llama 3 were first trained with: 8,192 for most."""
PARTIAL = ("phi3", "glm4")
"""The architectures where rope may rotate only a part of each head."""
LOW, HIGH = 1.0, 4.0
"""The limits of the same, which are these for every published model."""


def read_rope(model: Model, sizes: Mapping[str, int], config: Json) -> Json:
    """Return the settings of rope; ``config`` has what is known so far.

    config.json gets them in two forms, since readers know one or the other, and silently take a default if they find
    neither.

    Raises:
        Unsupported: if rope is scaled in a way that is not understood.
    """
    base = model.fields.real(model.key("rope.freq_base"), BASE)
    rope: Json = {"rope_theta": base, **read_scaling(model, sizes, base)}
    rotated, width = model.count("rope.dimension_count", sizes["head"]), sizes["head"]
    if model.name != "deepseek2" and rotated != width:
        if rotated > width:
            raise damaged(f"{rotated} numbers of a head of {width} have rope")
        if model.name not in PARTIAL:
            raise refuse(f"a {model.name} whose {model.key('rope.dimension_count')!r} is not its head size {width}")
        rope["partial_rotary_factor"] = rotated / width
    found: Json = {"rope_theta": base}
    if "partial_rotary_factor" in rope:
        found["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if model.name == "gemma3" or (model.name == "olmo2" and config.get("sliding_window")):
        local_base = base if model.name == "olmo2" else LOCAL_BASE
        local = {"rope_type": "default", "rope_theta": model.fields.real(model.key("rope.freq_base_swa"), local_base)}
        return found | {"rope_parameters": {"full_attention": rope, "sliding_attention": local}}
    if "original_max_position_embeddings" in rope and rope["rope_type"] == "longrope":
        found["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    return found | {"rope_parameters": rope}


def read_scaling(model: Model, sizes: Mapping[str, int], base: float) -> Json:
    """Return the type of rope, and the settings of that type."""
    kind = model.fields.text(model.key("rope.scaling.type"), "none")
    if TABLE in model.file.tensors:
        return read_table(model, sizes, base)
    if LONG in model.file.tensors or SHORT in model.file.tensors:
        return read_factors(model, sizes)
    if kind == "none" or (kind == "longrope" and not model.has("rope.scaling.factor")):
        return {"rope_type": "default"}
    if kind not in ("linear", "yarn"):
        raise refuse(f"a {model.name} with rope scaling of the type {kind!r}")
    found: Json = {"rope_type": kind, "factor": model.fields.real(model.key("rope.scaling.factor"))}
    return found | read_yarn(model, sizes) if kind == "yarn" else found


def read_yarn(model: Model, sizes: Mapping[str, int]) -> Json:  # noqa: ARG001 -- as the others
    """Return the settings of YaRN."""
    key = model.key("rope.scaling.original_context_length")
    found: Json = {"original_max_position_embeddings": model.fields.count(key)}
    for name in ("beta_fast", "beta_slow"):
        if model.has(f"rope.scaling.yarn_{name}"):
            found[name] = model.fields.real(model.key(f"rope.scaling.yarn_{name}"))
    if model.name == "deepseek2" and model.has("rope.scaling.yarn_log_multiplier"):
        weight = round(model.fields.real(model.key("rope.scaling.yarn_log_multiplier")) * 10, 6)
        found |= {"mscale": weight, "mscale_all_dim": weight}
    if model.name == "gpt-oss":
        found["truncate"] = False
    return found


def read_values(model: Model, name: str, sizes: Mapping[str, int]) -> list[float]:
    """Return a table with a number for each pair that rope rotates."""
    info = model.file.tensors.get(name)
    pairs = model.count("rope.dimension_count", sizes["head"]) // 2
    if info is None or info.shape != (pairs,):
        raise damaged(f"it has no tensor {name!r} of {pairs} numbers")
    values = read_rows(model.file.read_rows(info), info.kind).reshape(-1)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise damaged(f"the tensor {name!r} has values that are not positive")
    return [float(str(value)) for value in values]


def read_table(model: Model, sizes: Mapping[str, int], base: float) -> Json:
    """Return the settings of Llama 3 that give the divisors of frequencies in a file."""
    table = read_values(model, TABLE, sizes)
    factor = max(table)
    for trained in TRAINED:
        if np.allclose(table, list(stretch(len(table), base, factor, trained)), rtol=1e-5, atol=0):
            found: Json = {"rope_type": "llama3", "factor": factor, "low_freq_factor": LOW, "high_freq_factor": HIGH}
            return found | {"original_max_position_embeddings": trained}
    raise refuse(f"a {model.name} with a table of rope factors that are not those of Llama 3")


def stretch(pairs: int, base: float, factor: float, trained: int) -> Iterator[float]:
    """Yield what each frequency is divided by; see ``rope_type: llama3`` of transformers."""
    for pair in range(pairs):
        wave = 2 * math.pi * base ** (pair / pairs)
        share = min(max((trained / wave - LOW) / (HIGH - LOW), 0.0), 1.0)
        yield 1 / ((1 - share) / factor + share)


def read_factors(model: Model, sizes: Mapping[str, int]) -> Json:
    """Return the factors of LongRoPE."""
    return {
        "rope_type": "longrope",
        "long_factor": read_values(model, LONG, sizes),
        "short_factor": read_values(model, SHORT, sizes),
        "original_max_position_embeddings": model.count("rope.scaling.original_context_length"),
    }
