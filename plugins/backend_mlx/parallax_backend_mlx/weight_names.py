"""Renames and reshapes weights of a checkpoint into the form that mlx-lm's model file reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from parallax_backend_mlx.runtime import mx

Weights = dict[str, mx.array]

EXPERTS = ".mlp.experts."
PLAIN = f"{EXPERTS}gate_up_proj"
"""The suffix of a gpt_oss tensor's name if its experts are not packed to four bits."""

DENSE = re.compile(r"\.block_sparse_moe\.((?:gate|up|down)_proj\.)")


def spell_weights(model_class: type) -> type:
    """Return ``model_class``, or a subclass of it that reads more forms of its weights."""
    spell = SPELLINGS.get(model_class.__module__.rpartition(".")[2])
    return model_class if spell is None else _extend_class(model_class, spell)


def _extend_class(model_class: Any, spell: Callable[[Mapping[str, mx.array]], Weights]) -> type:  # noqa: ANN401  # of mlx-lm
    class Spelled(model_class):  # type: ignore[misc]
        def sanitize(self, weights: Weights) -> Weights:
            """Rename and join weights for the model."""
            sanitized: Weights = super().sanitize(spell(weights))
            return sanitized

    return Spelled


def _spell_gpt_oss(weights: Mapping[str, mx.array]) -> Weights:
    """Split and transpose experts that transformers saved in full precision; mlx-lm only reads packed ones.

    In these files a matrix has the shape [experts, inputs, outputs], and columns of gate and up alternate.
    """
    if not any(name.endswith(PLAIN) for name in weights):
        return dict(weights)
    return {new: array for name, old in weights.items() for new, array in _split_expert(name, old)}


def _split_expert(name: str, array: mx.array) -> Iterator[tuple[str, mx.array]]:
    head, found, tail = name.partition(EXPERTS)
    matrix, is_bias = tail.removesuffix("_bias"), tail.endswith("_bias")
    if not found or matrix not in ("gate_up_proj", "down_proj"):
        yield name, array
        return
    kind = "bias" if is_bias else "weight"
    turned = array if is_bias else array.swapaxes(-1, -2)
    if matrix == "down_proj":
        yield f"{head}{EXPERTS}down_proj.{kind}", mx.contiguous(turned)
        return
    for first, part in enumerate(("gate_proj", "up_proj")):
        half = turned[..., first::2] if is_bias else turned[..., first::2, :]
        yield f"{head}{EXPERTS}{part}.{kind}", mx.contiguous(half)


def _spell_qwen3_5_moe(weights: Mapping[str, mx.array]) -> Weights:
    """Join experts that transformers saved one by one; mlx-lm only reads them joined, as they are published.

    A matrix of gates and ups then has the shape [experts, 2 * inner, width], and one of downs [experts, width, inner].
    """
    found: Weights = {}
    layers: dict[str, dict[str, mx.array]] = {}
    for name, array in weights.items():
        head, is_expert, tail = name.partition(EXPERTS)
        if is_expert and tail[0].isdigit():
            layers.setdefault(head, {})[tail.removesuffix(".weight")] = array
        else:
            found[name] = array
    for head, parts in layers.items():
        numbers = range(len(parts) // 3)
        gates, ups, downs = (
            mx.stack([parts[f"{number}.{kind}_proj"] for number in numbers]) for kind in ("gate", "up", "down")
        )
        found |= {f"{head}{PLAIN}": mx.concatenate([gates, ups], axis=1), f"{head}{EXPERTS}down_proj": downs}
    return found


def _spell_kimi_linear(weights: Mapping[str, mx.array]) -> Weights:
    """Rename the MLP of layers without experts, to which transformers gives the name of experts."""
    return {DENSE.sub(r".mlp.\1", name): array for name, array in weights.items()}


def _spell_step3p5(weights: Mapping[str, mx.array]) -> Weights:
    """Leave out the tensors of what sees."""
    return {name: array for name, array in weights.items() if name.startswith(("lm_head.", "model."))}


SPELLINGS: dict[str, Callable[[Mapping[str, mx.array]], Weights]] = {
    "gpt_oss": _spell_gpt_oss,
    "kimi_linear": _spell_kimi_linear,
    "qwen3_5_moe": _spell_qwen3_5_moe,
    "step3p5": _spell_step3p5,
}
"""The function that translates weights, by the model file of mlx-lm."""
