"""Registers the adapters of model families, and the parsers of their outputs, with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import ModelSpec, ParserSpec, Ref, hookimpl
from parallax_models.parsers.formats import FORMATS

REMEDY = "pip install -U parallax-models parallax-backend-torch"
PLAIN = "parallax_backend_torch.api:Decoder"
"""The blocks of families whose layers are those of Llama."""


def _offer(name: str, summary: str, architectures: str, blocks: str, parser: str = "") -> ModelSpec:
    """Return the offer of a family.

    Args:
        name: the family, and the module of its adapter.
        summary: as `ModelSpec.summary`.
        architectures: the architectures, separated by spaces.
        blocks: the class of its blocks for ``torch``, in ``blocks``; or a whole reference.
        parser: as `ModelSpec.parser`.
    """
    return ModelSpec(
        name=name,
        summary=summary,
        architectures=tuple(architectures.split()),
        adapter=Ref(f"parallax_models.{name}:ADAPTER"),
        blocks={"torch": Ref(blocks if "." in blocks else f"parallax_models.blocks.{blocks}")},
        remedy=REMEDY,
        parser=parser,
    )


FAMILIES = (
    _offer("llama", "Llama and SmolLM", "LlamaForCausalLM", PLAIN),
    _offer("qwen2", "Qwen2 and Qwen2.5", "Qwen2ForCausalLM", "qwen2:Qwen2"),
    _offer("qwen3", "Qwen3, dense", "Qwen3ForCausalLM", "qwen2:Qwen2"),
    _offer("qwen3_moe", "Qwen3 with experts", "Qwen3MoeForCausalLM", "qwen3_moe:Qwen3Moe"),
    _offer("gemma3", "Gemma 3, text", "Gemma3ForCausalLM", "gemma3:Gemma3"),
    _offer("gpt_oss", "GPT-OSS", "GptOssForCausalLM", "gpt_oss:GptOss", parser="harmony"),
    _offer("deepseek_v3", "DeepSeek-V3 and R1", "DeepseekV3ForCausalLM", "deepseek_v3:DeepseekV3"),
    _offer("qwen3_next", "Qwen3-Next", "Qwen3NextForCausalLM", "qwen3_next:Qwen3Next"),
)


@hookimpl
def parallax_register_models() -> Iterable[ModelSpec]:
    """Offer an adapter, and blocks, for each family."""
    return FAMILIES


@hookimpl
def parallax_register_parsers() -> Iterable[ParserSpec]:
    """Offer a parser for each format."""
    return FORMATS
