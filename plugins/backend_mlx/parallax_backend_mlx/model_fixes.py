"""Corrects model files of mlx-lm that deviate from config.json or from the authors of a model.

Each deviation was found by comparing logits with those of transformers, and is tested that way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from parallax_backend_mlx.runtime import Embedding, Module, YarnRoPE, gelu_approx, mx

ROTATIONS = {"beta_fast": 32.0, "beta_slow": 1.0}
"""The rotations at which YaRN begins and ends to blend, unless config.json gives others."""
SMALLEST_RANGE = 0.001
CORRECTION = "moe_statics.e_score_correction_bias"
"""The tensor of ERNIE 4.5 that is added to the scores by which experts are chosen; mlx-lm drops it."""
LEAST_SUM = 1e-12
TANH_GELU = "gelu_pytorch_tanh"
"""The activation of StarCoder2, as config.json names it; mlx-lm computes the exact GELU instead."""


class ScaledEmbedding(Embedding):
    """An embedding whose rows are multiplied by a factor; as a head, it is not."""

    def __init__(self, plain: Embedding, factor: float) -> None:
        super().__init__(1, 1)
        self.weight = plain.weight
        self._factor = factor

    def __call__(self, tokens: mx.array) -> mx.array:
        """Return the rows of ``tokens``, shape [..., width]."""
        rows: mx.array = super().__call__(tokens)  # type: ignore[no-untyped-call]
        return rows * self._factor


class TanhMlp(Module):
    """An MLP without a gate, whose GELU is approximated by a tanh (arXiv 1606.08415, section 2)."""

    def __init__(self, plain: Any) -> None:  # noqa: ANN401  # a class of mlx-lm
        super().__init__()  # type: ignore[no-untyped-call]
        self.c_fc, self.c_proj = plain.c_fc, plain.c_proj

    def __call__(self, x: mx.array) -> mx.array:
        """Return the output, shape [..., width]."""
        found: mx.array = self.c_proj(gelu_approx(self.c_fc(x)))
        return found


class CorrectedExperts(Module):
    """Experts of ERNIE 4.5, chosen by their scores and a correction, which mlx-lm leaves out."""

    def __init__(self, plain: Any) -> None:  # noqa: ANN401  # a class of mlx-lm
        super().__init__()  # type: ignore[no-untyped-call]
        self.gate, self.switch_mlp, self.gate_act = plain.gate, plain.switch_mlp, plain.gate_act
        self.shared_experts = plain.shared_experts
        self.correction = mx.zeros((1, plain.gate.weight.shape[0]))
        self._num_chosen = plain.k

    def __call__(self, x: mx.array) -> mx.array:
        """Return the output, shape [..., width]; the weights of the chosen experts are scores without corrections."""
        scores = self.gate_act(self.gate(x).astype(mx.float32))
        last = self._num_chosen - 1
        chosen = mx.argpartition(-(scores + self.correction[0]), kth=last, axis=-1)[..., : self._num_chosen]
        weights = mx.take_along_axis(scores, chosen, axis=-1)
        weights = weights / mx.maximum(weights.sum(axis=-1, keepdims=True), LEAST_SUM)
        found = self.switch_mlp(x, chosen)
        output: mx.array = (found * weights[..., None]).sum(axis=-2).astype(found.dtype)
        return output if self.shared_experts is None else output + self.shared_experts(x)


def keep_corrections(model: Any, weights: dict[str, mx.array]) -> dict[str, mx.array]:  # noqa: ANN401  # of mlx-lm
    """Return ``weights`` with the corrections of experts under names that mlx-lm does not drop, and have them used."""
    kept = dict(weights)
    for number, layer in enumerate(getattr(getattr(model, "model", None), "layers", ())):
        if type(getattr(layer, "mlp", None)).__name__ != "Ernie4_5_MoeMLP":
            continue
        layer.mlp = CorrectedExperts(layer.mlp)
        mlp = f"model.layers.{number}.mlp"
        kept[f"{mlp}.correction"] = kept.pop(f"{mlp}.{CORRECTION}", layer.mlp.correction)
    return kept


def correct_model(model: Module, config: Mapping[str, Any]) -> None:
    """Correct ``model``, whose weights need not be evaluated.

    Args:
        model: the model that mlx-lm built.
        config: its config.json, with the settings that mlx-lm reads.
    """
    text = config.get("text_config")
    config = text if isinstance(text, Mapping) else config
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    for module in model.modules():  # type: ignore[no-untyped-call]
        if type(module) is YarnRoPE and scaling.get("truncate") is False:
            module._freqs = find_frequencies(module.dims, float(config["rope_theta"]), scaling)  # noqa: SLF001  # its only state
        elif type(module).__name__ == "SuScaledRoPE" and isinstance(factors := scaling.get("short_factor"), list):
            base = float(scaling.get("rope_theta") or config["rope_theta"])  # mlx-lm takes those of longer sequences
            plain: mx.array = base ** (mx.arange(0, module.dim, 2, dtype=mx.float32) / module.dim)
            module._freqs = mx.array(factors, dtype=mx.float32) * plain  # noqa: SLF001  # its only state
        elif type(module).__name__ == "Gemma3Model":
            _correct_scale(module)
        elif type(module).__name__ == "Starcoder2Model" and config.get("hidden_act", TANH_GELU) == TANH_GELU:
            _correct_activation(module)


def find_frequencies(dims: int, base: float, scaling: Mapping[str, Any]) -> mx.array:
    """Return the periods of YaRN rope whose range is not truncated, float32 of shape [dims / 2].

    mlx-lm always rounds the range outwards to whole dimensions, and ignores ``truncate``. See arXiv 2309.00071,
    section 3.2.
    """
    low, high = (
        dims
        * math.log(scaling["original_max_position_embeddings"] / (scaling.get(name) or default) / (2 * math.pi))
        / (2 * math.log(base))
        for name, default in ROTATIONS.items()
    )
    low, high = max(low, 0.0), min(high, dims - 1.0)
    blend = mx.clip((mx.arange(dims // 2) - low) / max(high - low, SMALLEST_RANGE), 0, 1)
    frequencies = base ** -(mx.arange(0, dims, 2, dtype=mx.float32) / dims)
    found: mx.array = 1 / (frequencies * (1 - blend) + frequencies / scaling["factor"] * blend)
    return found


def _correct_scale(body: Any) -> None:  # noqa: ANN401  # a class of mlx-lm
    """Set the exact scale of Gemma 3's embeddings in float32; mlx-lm rounds it to bfloat16, by up to one in 500."""
    plain, exact = body.embed_tokens, math.sqrt(body.args.hidden_size)
    if type(plain) is Embedding and plain.weight.dtype == mx.float32:
        rounded: Any = mx.array(exact, mx.bfloat16).item()
        body.embed_tokens = ScaledEmbedding(plain, exact / rounded)


def _correct_activation(body: Any) -> None:  # noqa: ANN401  # a class of mlx-lm
    """Compute the activation that config.json names; that of mlx-lm moves log-probabilities by 2e-4."""
    for layer in body.layers:
        layer.mlp = TanhMlp(layer.mlp)
