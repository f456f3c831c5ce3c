"""Settings of single families, in the words of their model files in mlx-lm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parallax_core.api import Unsupported

Json = Mapping[str, Any]

FULL, SLIDING = "full_attention", "sliding_attention"
OTHER = "mlx-lm has no setting for them; try another backend"
PLAIN_YARN = {"type": "yarn", "factor": 1.0}
"""A scaling that changes nothing."""


def translate_family(config: Json) -> dict[str, Any]:
    """Return the settings to add to config.json, or to replace in it, before all others are read.

    Raises:
        Unsupported: if mlx-lm has no counterpart for a setting of the family.
    """
    translate = TRANSLATIONS.get(str(config.get("model_type")))
    changes = translate(config) if translate else {}
    text = config.get("text_config")
    inner = translate_family(text) if isinstance(text, Mapping) else {}
    return changes | ({"text_config": {**text, **inner}} if isinstance(text, Mapping) and inner else {})


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
        raise Unsupported(message, OTHER)
    return {"first_k_dense_replace": first} if kinds else {}


def _translate_period(config: Json) -> dict[str, Any]:
    """Give the period of layers that are attention, and not delta nets."""
    kinds = config.get("layer_types") or ()
    if not kinds:
        return {}
    period = kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1
    if any((index % period == period - 1) != (kind == FULL) for index, kind in enumerate(kinds)):
        raise Unsupported(f"layer_types of {config['model_type']} have no period", OTHER)
    return {"full_attention_interval": period}


def _translate_glm_dsa(config: Json) -> dict[str, Any]:
    """Give what the authors' code does where transformers has no setting."""
    if "shared" in (config.get("indexer_types") or ()):
        message = "indexer_types of glm_moe_dsa has layers that share the index of another"
        raise Unsupported(message, OTHER)
    filled = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    return _translate_dense(config) | {name: value for name, value in filled.items() if name not in config}


def _translate_granite_hybrid(config: Json) -> dict[str, Any]:
    """Give the kinds of layers in the words before transformers 5, and no rope if none is asked for."""
    if config.get("mamba_n_groups", 1) != 1:
        message = (
            f"mamba_n_groups of granitemoehybrid is {config['mamba_n_groups']}, and mlx-lm norms all groups as one"
        )
        raise Unsupported(message, "try another backend")
    kinds = [GRANITE_KINDS.get(kind, kind) for kind in config.get("layer_types") or ()]
    changes: dict[str, Any] = {"layer_types": kinds} if kinds else {}
    return changes | ({} if config.get("position_embedding_type") == "rope" else {"position_embedding_type": "nope"})


def _check_falcon(config: Json) -> dict[str, Any]:
    """Refuse factors that mlx-lm leaves out: it looks for the matrix of keys under another name."""
    for name in ("key_multiplier", "attention_in_multiplier"):
        if config.get(name, 1.0) != 1:
            message = f"{name} of falcon_h1 is {config[name]}, and mlx-lm does not apply it to keys and values"
            raise Unsupported(message, "try another backend")
    if config.get("mamba_rms_norm") and config.get("mamba_n_groups", 1) != 1:
        message = f"mamba_n_groups of falcon_h1 is {config['mamba_n_groups']}, and mlx-lm norms all groups as one"
        raise Unsupported(message, "try another backend")
    return {}


def _translate_lfm2(config: Json) -> dict[str, Any]:
    """Give the widths by their names before transformers 5."""
    names = {"block_dim": "hidden_size", "block_ff_dim": "intermediate_size"}
    return {name: config[new] for name, new in names.items() if name not in config and new in config}


def _drop_rope(config: Json) -> dict[str, Any]:
    """Take away settings of rope, which the family does not compute, whatever its config.json says."""
    return {"rope_parameters": None} if config.get("rope_parameters") else {}


def _translate_gemma4(config: Json) -> dict[str, Any]:
    """Give what layers that see everything have in place of the others, where transformers writes it by layer."""
    kinds, changes = config.get("layer_types") or (), config.get("per_layer_config")
    if not isinstance(changes, Mapping):
        return {}
    if not kinds:
        raise Unsupported("config.json of gemma4_text has no 'layer_types', which 'per_layer_config' needs", OTHER)
    given = [changes.get(str(index)) or {} for index, kind in enumerate(kinds) if kind == FULL]
    full = {str(index) for index, kind in enumerate(kinds) if kind == FULL}
    sliding = [each for index, each in changes.items() if index not in full and each]
    if sliding or any(each != given[0] for each in given):
        raise Unsupported("per_layer_config of gemma4_text differs between layers of one kind", OTHER)
    found: dict[str, Any] = {"global_head_dim": config.get("head_dim"), **dict.fromkeys(GEMMA4_GLOBALS.values())}
    return found | {GEMMA4_GLOBALS.get(name, name): value for name, value in (given or [{}])[0].items()}


def _translate_kimi_linear(config: Json) -> dict[str, Any]:
    """Give the layers with delta attention by their numbers from 1, and the number of first layers without experts."""
    kinds = config.get("layer_types") or ()
    if config.get("linear_attn_config") or not kinds:
        return {}
    given = {new: config[name] for name, new in KIMI_LINEAR.items() if config.get(name) is not None}
    inner: dict[str, Any] = {"head_dim": 128, "num_heads": 32, **given} | {
        name: [number for number, each in enumerate(kinds, 1) if (each == FULL) == (name == "full_attn_layers")]
        for name in ("full_attn_layers", "kda_layers")
    }
    if "gate_lower_bound" in inner:
        raise Unsupported("linear_lower_bound of kimi_linear bounds the decays of its states", OTHER)
    return {"linear_attn_config": inner} | _translate_dense(config)


def _translate_step(config: Json) -> dict[str, Any]:
    """Give the settings of Step 3.7's text, or those that transformers writes, in the words of Step 3.5's authors."""
    text = config.get("text_config")
    settings = {**config, **text} if isinstance(text, Mapping) else dict(config)
    found = settings | {old: settings[new] for old, new in STEP.items() if old not in settings and new in settings}
    if settings.get("query_pre_attn_scalar", settings.get("head_dim")) != settings.get("head_dim"):
        raise Unsupported("query_pre_attn_scalar of step3p5 is not the width of its heads", OTHER)
    kinds, ropes = settings.get("layer_types") or (), settings.get("rope_parameters") or {}
    if FULL in ropes:
        named = {"partial_rotary_factors": ("partial_rotary_factor", 1.0), "rope_theta": ("rope_theta", 10000.0)}
        found |= {old: [ropes[kind].get(*each) for kind in kinds] for old, each in named.items()}
        scaled = [kind for kind in dict.fromkeys(kinds) if ropes[kind].get("rope_type", "default") != "default"]
        found |= {"rope_scaling": ropes[scaled[0]], "yarn_only_types": scaled} if scaled else {}
    if "moe_layers_enum" not in settings:
        count = settings.get("num_hidden_layers", 0)
        words = settings.get("mlp_layer_types") or ["dense"] * 3 + ["sparse"] * (count - 3)
        found["moe_layers_enum"] = ",".join(str(index) for index, word in enumerate(words) if word == "sparse")
    sliding = settings.get("num_sliding_attention_heads")
    other = settings.get("attention_other_setting") or (sliding and {"num_attention_heads": sliding})
    if other:
        found["attention_other_setting"] = {"num_attention_groups": found.get("num_attention_groups"), **other}
    changes = {name: value for name, value in found.items() if config.get(name) != value}
    return changes | {name: None for name in ("rope_parameters", "text_config") if name in found}


def _check_llama4(config: Json) -> dict[str, Any]:
    """Refuse what the text part of Llama 4 has, and its model file lacks."""
    kinds, experts = config.get("layer_types") or (), config.get("moe_layers") or ()
    lacks = {
        "moe_layers": ("layers with experts", bool(experts) or config.get("interleave_moe_layer_step", 1) > 0),
        "layer_types": ("layers that attend within chunks", "chunked_attention" in kinds or not kinds),
    }
    for name, (what, is_there) in lacks.items():
        if is_there:
            message = f"by {name}, this llama4_text has {what}, which its model file in mlx-lm lacks"
            raise Unsupported(message, "try another backend")
    return {}


def _check_experts(config: Json) -> dict[str, Any]:
    """Refuse layers without experts."""
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        name = "mlp_only_layers" if config.get("mlp_only_layers") else "decoder_sparse_step"
        raise Unsupported(f"by {name} of {config['model_type']}, layers have no experts", OTHER)
    return {}


GRANITE_KINDS = {"linear_attention": "mamba", FULL: "attention"}
KIMI_LINEAR = {
    "linear_conv_kernel_dim": "short_conv_kernel_size",
    "linear_head_dim": "head_dim",
    "linear_lower_bound": "gate_lower_bound",
    "linear_num_heads": "num_heads",
}
"""Settings of delta attention in Kimi Linear, and their names in mlx-lm, which has no defaults for them."""
STEP = {
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "norm_expert_weight": "norm_topk_prob",
    "num_attention_groups": "num_key_value_heads",
    "share_expert_dim": "share_expert_dims",
}
"""Settings of Step 3.5 by the names of mlx-lm, and of transformers or older files."""
GEMMA4_GLOBALS = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
"""Settings of a layer that sees everything, and their names in mlx-lm."""
TRANSLATIONS: dict[str, Callable[[Json], dict[str, Any]]] = {
    "exaone4": _translate_exaone4,
    "falcon_h1": _check_falcon,
    "gemma4_text": _translate_gemma4,
    "glm4_moe_lite": _translate_dense,
    "glm_moe_dsa": _translate_glm_dsa,
    "granitemoehybrid": _translate_granite_hybrid,
    "kimi_linear": _translate_kimi_linear,
    "lfm2": _translate_lfm2,
    "llama4_text": _check_llama4,
    "minimax_m2": _translate_minimax,
    "nemotron_h": _drop_rope,
    "olmo3": _translate_olmo3,
    "qwen2_moe": _check_experts,
    "qwen3_5_moe_text": _translate_period,
    "qwen3_5_text": _translate_period,
    "qwen3_next": _translate_period,
    "step3p5": _translate_step,
    "step3p7": _translate_step,
}
"""The function that translates settings, by ``model_type``."""
