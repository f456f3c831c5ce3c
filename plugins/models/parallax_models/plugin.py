"""Registers the adapters of model families with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import ModelSpec, Ref, hookimpl

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
        )
        for name, (summary, architecture) in FAMILIES.items()
    ]
