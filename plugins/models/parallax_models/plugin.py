"""Registers the adapters of model families, and the parsers of their outputs, with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import ModelSpec, ParserSpec, Ref, hookimpl
from parallax_models.parsers.formats import FORMATS

FAMILIES = {
    "llama": ("Llama and SmolLM", "LlamaForCausalLM"),
    "qwen2": ("Qwen2 and Qwen2.5", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3, dense", "Qwen3ForCausalLM"),
    "qwen3_moe": ("Qwen3 with experts", "Qwen3MoeForCausalLM"),
    "gemma3": ("Gemma 3, text", "Gemma3ForCausalLM"),
    "gpt_oss": ("GPT-OSS", "GptOssForCausalLM"),
    "deepseek_v3": ("DeepSeek-V3 and R1", "DeepseekV3ForCausalLM"),
    "qwen3_next": ("Qwen3-Next", "Qwen3NextForCausalLM"),
}

PARSERS = {"gpt_oss": "harmony"}
"""The families whose models all write one format."""


@hookimpl
def parallax_register_models() -> Iterable[ModelSpec]:
    """Offer an adapter for each family."""
    return [
        ModelSpec(
            name=name,
            summary=summary,
            architectures=(architecture,),
            adapter=Ref(f"parallax_models.{name}:ADAPTER"),
            remedy="pip install parallax-models",
            parser=PARSERS.get(name, ""),
        )
        for name, (summary, architecture) in FAMILIES.items()
    ]


@hookimpl
def parallax_register_parsers() -> Iterable[ParserSpec]:
    """Offer a parser for each format."""
    return FORMATS
