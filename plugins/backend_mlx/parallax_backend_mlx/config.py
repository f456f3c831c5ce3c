"""Translates a model's config.json into the fields mlx-lm reads.

transformers 5 writes the settings of rotary embeddings into ``rope_parameters``. Most model files of mlx-lm read only
``rope_theta`` and ``rope_scaling`` and silently fall back to defaults. Here they are copied to where mlx-lm reads
them, with the meaning they have in transformers; ambiguous settings are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from parallax_core.api import Unsupported

Json = Mapping[str, Any]

ROPE_TYPES = frozenset(
    [
        "default",
        "linear",
        "dynamic",
        "llama3",
        "yarn",
        "deepseek_yarn",
        "telechat3-yarn",
        "longrope",
        "proportional",
        "mrope",
    ]
)
"""The kinds of rope that mlx-lm computes."""
STRETCHED = ("llama3", "yarn", "longrope")
"""Kinds that need ``original_max_position_embeddings``, which transformers fills in where it is missing."""
SPELLINGS = {
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct"),
}
"""The names of settings of ``rope_parameters`` in the model files of mlx-lm."""
NEUTRAL = {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}
"""The values that a model file uses if it does not read the setting."""

SAME = 1e-4
"""The largest difference of two factors that are the same, but for rounding."""

RENAMED = {"num_experts": "num_local_experts", "n_ctx": "n_positions"}
"""Settings that mlx-lm reads by their names before transformers 5."""
PERIODIC = frozenset(["gemma3_text", "cohere2"])
"""Models whose ``sliding_window_pattern`` mlx-lm reads as a period."""

HEAD = re.compile(r"(^|\.)lm_head\.weight$")
OBJECTS = ("quantization", "quantization_config", "rope_parameters", "rope_scaling")
"""Settings that are objects with further settings."""
SILU = frozenset(
    (
        *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "deepseek_v3"),
        *("olmo2", "olmoe", "phi3", "granite", "cohere"),
    )
)
GELU = frozenset(["gemma2", "gemma3_text"])
ACTIVATIONS = {"hidden_act": (SILU, ("silu", "swish")), "hidden_activation": (GELU, ("gelu_pytorch_tanh",))}
"""Activation settings that the model files of these models do not read, and the activation they compute."""


def check_objects(config: Json) -> None:
    """Refuse a config.json with another value where an object of settings belongs.

    Raises:
        Unsupported: naming the setting.
    """
    for name in OBJECTS:
        if config.get(name) and not isinstance(config[name], Mapping):
            message = f"{name!r} in config.json is {config[name]!r}, not an object with settings"
            raise Unsupported(message, "fetch the model again")


def normalise(config: Json, fields: frozenset[str], tensors: Collection[str]) -> dict[str, Any]:
    """Return the keys to add to ``config``, or to replace in it.

    Args:
        config: config.json.
        fields: the settings that the model file of mlx-lm reads, in all its parts.
        tensors: the names of the tensors in the checkpoint.

    Raises:
        Unsupported: if mlx-lm has no exact counterpart for a setting of ``rope_parameters``, or for an activation.
    """
    changes = _place_part(config, fields)
    if "tie_word_embeddings" not in config and "tie_word_embeddings" in fields and "text_config" not in config:
        # The defaults of mlx-lm and transformers differ; a checkpoint with a separate head is not tied.
        changes["tie_word_embeddings"] = "lm_head.weight" not in tensors
    text, tied = config.get("text_config"), config.get("tie_word_embeddings")
    if isinstance(text, Mapping):  # whether the head is the embedding is a setting of the model around the text
        tied = True if tied is None and tensors and not any(map(HEAD.search, tensors)) else tied
        inner = _place_part(text, fields) | ({} if tied is None else {"tie_word_embeddings": tied})
        changes |= {"text_config": {**text, **inner}} if inner else {}
    return changes


def _place_part(config: Json, fields: frozenset[str]) -> dict[str, Any]:
    check_objects(config)
    _check_activation(config, fields)
    renamed = {new: config[old] for new, old in RENAMED.items() if new in fields - config.keys() and old in config}
    return renamed | _place_rope(config, fields) | _place_pattern(config, fields)


def _check_activation(config: Json, fields: frozenset[str]) -> None:
    for name, (models, computed) in ACTIVATIONS.items():
        given = config.get(name)
        if given is not None and name not in fields and config.get("model_type") in models and given not in computed:
            message = f"{name} of this model is {given!r}, and mlx-lm always computes {computed[0]}"
            raise Unsupported(message, "try another backend")


def _place_pattern(config: Json, fields: frozenset[str]) -> dict[str, Any]:
    """Translate ``layer_types`` to mlx-lm's period: every period-th layer has full attention."""
    kinds = config.get("layer_types")
    if not kinds or "layer_types" in fields or config.get("model_type") not in PERIODIC:
        return {}
    period = kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1
    if any((index % period == period - 1) != (kind == "full_attention") for index, kind in enumerate(kinds)):
        message = f"layer_types of {config['model_type']} have no period"
        raise Unsupported(message, "mlx-lm has no setting for them; try another backend")
    return {"sliding_window_pattern": period}


def _place_rope(config: Json, fields: frozenset[str]) -> dict[str, Any]:
    rope = config.get("rope_parameters")
    if not rope:
        return {}
    kinds = {kind: value for kind, value in rope.items() if isinstance(value, Mapping)}
    if not kinds:
        return _place_flat(config, rope, fields)
    if "rope_parameters" in fields:
        return {}
    values = list(kinds.values())
    if all(value == values[0] for value in values):
        return {"rope_parameters": None, **_place_flat(config, values[0], fields)}
    if str(config.get("model_type")) == "gemma3_text":
        return _place_gemma3(config, kinds, fields)
    message = f"rope_parameters of {config.get('model_type')} differ between layer types: {', '.join(sorted(kinds))}"
    raise Unsupported(message, "mlx-lm has no setting for them; try another backend")


def _place_gemma3(config: Json, kinds: Json, fields: frozenset[str]) -> dict[str, Any]:
    """Translate the rope of Gemma 3: one for its global layers, and a plain one for its local layers."""
    if kinds.keys() != {"full_attention", "sliding_attention"} or _read_type(kinds["sliding_attention"]) != "default":
        message = f"rope_parameters of gemma3_text have unknown settings for {', '.join(sorted(kinds))}"
        raise Unsupported(message, "try another backend")
    changes = _place_flat(config, kinds["full_attention"], fields)
    if "rope_theta" in kinds["sliding_attention"]:
        changes["rope_local_base_freq"] = kinds["sliding_attention"]["rope_theta"]
    return changes


def _place_flat(config: Json, rope: Json, fields: frozenset[str]) -> dict[str, Any]:
    if "rope_parameters" in fields:
        # The model file reads them itself, but may require the plain key too.
        return {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope and "rope_theta" not in config else {}
    changes: dict[str, Any] = {}
    for setting, spellings in SPELLINGS.items():
        if setting in rope:
            changes |= _place_setting(setting, rope[setting], fields.intersection(spellings))
    return changes | _place_scaling(config, rope, fields)


def _place_setting(setting: str, value: object, spellings: frozenset[str]) -> dict[str, Any]:
    if not spellings and value != NEUTRAL[setting]:
        message = f"mlx-lm does not read {setting} for this model, which has {setting} {value}"
        raise Unsupported(message, "try another backend")
    return dict.fromkeys(spellings, value)


def _place_scaling(config: Json, rope: Json, fields: frozenset[str]) -> dict[str, Any]:
    kind = _read_type(rope)
    if kind not in ROPE_TYPES:
        message = f"mlx-lm does not compute rope of the type {kind}"
        raise Unsupported(message, "try another backend")
    scaling = {key: value for key, value in rope.items() if key not in SPELLINGS}
    # Model files read one name or the other.
    scaling |= {"rope_type": kind, "type": kind}
    if kind == "default" and scaling.keys() == {"rope_type", "type"}:
        # Some model files need an explicit None.
        return _refuse_second(config, None) | ({"rope_scaling": None} if "rope_scaling" in fields else {})
    if "rope_scaling" not in fields:
        message = f"mlx-lm does not read rope_scaling for this model, which has rope of the type {kind}"
        raise Unsupported(message, "try another backend")
    length = config.get("original_max_position_embeddings", config.get("max_position_embeddings"))
    if kind == "yarn":
        _check_temperature(config, scaling)
    if kind in STRETCHED and length is not None:
        scaling.setdefault("original_max_position_embeddings", length)
    return {**_refuse_second(config, scaling), "rope_scaling": scaling}


def _check_temperature(config: Json, scaling: Json) -> None:
    """Refuse a temperature of attention other than YaRN's own, which mlx-lm computes."""
    given, factor = scaling.get("attention_factor"), scaling.get("factor")
    if given is None or not factor or scaling.get("mscale"):
        return
    if abs(given - (0.1 * math.log(factor) + 1 if factor > 1 else 1.0)) > SAME:
        message = f"mlx-lm does not read attention_factor, which is {given} in {config.get('model_type')}"
        raise Unsupported(message, "try another backend")


def _refuse_second(config: Json, scaling: Json | None) -> dict[str, Any]:
    """Refuse a config with two different values for one setting."""
    other = config.get("rope_scaling")
    if other and (scaling is None or any(scaling.get(key) != value for key, value in other.items())):
        message = "config.json has both rope_scaling and rope_parameters, and they differ"
        raise Unsupported(message, "remove the one that is wrong from config.json")
    return {}


def _read_type(rope: Json) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")
