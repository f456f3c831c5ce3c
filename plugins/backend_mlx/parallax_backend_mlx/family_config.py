"""Settings of single families, in the words of their model files in mlx-lm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parallax_core.api import Unsupported

Json = Mapping[str, Any]

SLIDING = "sliding_attention"
PLAIN_YARN = {"type": "yarn", "factor": 1.0}
"""A scaling that changes nothing."""


def translate_family(config: Json) -> dict[str, Any]:
    """Return the settings to add to config.json, or to replace in it, before all others are read.

    Raises:
        Unsupported: if mlx-lm has no counterpart for a setting of the family.
    """
    translate = TRANSLATIONS.get(str(config.get("model_type")))
    return translate(config) if translate else {}


def fill_family(config: Json) -> dict[str, Any]:
    """Return settings that the model file needs, and config.json need not have, after all others are translated."""
    if config.get("model_type") == "deepseek_v2" and not config.get("rope_scaling"):
        return {"rope_scaling": PLAIN_YARN}
    return {}


def _translate_minimax(config: Json) -> dict[str, Any]:
    """Give the width of rope in place of its share, and no MLP that every token meets."""
    rope = dict(config.get("rope_parameters") or {})
    share = rope.pop("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    width = config.get("head_dim") or config.get("hidden_size", 0) // config.get("num_attention_heads", 1)
    filled = {"rotary_dim": int(width * share), "shared_intermediate_size": 0}
    changes: dict[str, Any] = {name: value for name, value in filled.items() if config.get(name) is None}
    return changes | ({"rope_parameters": rope} if rope else {})


def _translate_olmo3(config: Json) -> dict[str, Any]:
    """Give the rope of layers that see everything; mlx-lm leaves its scaling out in the others."""
    rope = config.get("rope_parameters") or {}
    full, sliding = rope.get("full_attention"), rope.get(SLIDING)
    if not full or not sliding or sliding.get("rope_type", "default") != "default":
        return {}
    return {"rope_parameters": full} if full.get("rope_theta") == sliding.get("rope_theta") else {}


def _translate_exaone4(config: Json) -> dict[str, Any]:
    """Give the kinds of layers as letters."""
    kinds, period = config.get("layer_types") or (), config.get("sliding_window_pattern")
    if not kinds and isinstance(period, int):
        return {"sliding_window_pattern": f"{'L' * (period - 1)}G"}
    if SLIDING not in kinds:
        return {}
    return {"sliding_window_pattern": "".join("L" if kind == SLIDING else "G" for kind in kinds)}


def _translate_dense(config: Json) -> dict[str, Any]:
    """Give the number of first layers without experts."""
    kinds = list(config.get("mlp_layer_types") or ())
    first = kinds.count("dense")
    if kinds[:first] != ["dense"] * first:
        message = f"mlp_layer_types of {config['model_type']} has layers without experts behind others"
        raise Unsupported(message, "mlx-lm has no setting for them; try another backend")
    return {"first_k_dense_replace": first} if kinds else {}


def _translate_period(config: Json) -> dict[str, Any]:
    """Give the period of layers that are attention, and not delta nets."""
    kinds = config.get("layer_types") or ()
    if not kinds:
        return {}
    period = kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1
    if any((index % period == period - 1) != (kind == "full_attention") for index, kind in enumerate(kinds)):
        message = f"layer_types of {config['model_type']} have no period"
        raise Unsupported(message, "mlx-lm has no setting for them; try another backend")
    return {"full_attention_interval": period}


TRANSLATIONS: dict[str, Callable[[Json], dict[str, Any]]] = {
    "exaone4": _translate_exaone4,
    "glm4_moe_lite": _translate_dense,
    "minimax_m2": _translate_minimax,
    "olmo3": _translate_olmo3,
    "qwen3_5_moe_text": _translate_period,
    "qwen3_5_text": _translate_period,
    "qwen3_next": _translate_period,
}
"""The function that translates settings, by ``model_type``."""
