"""Registers a model family with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import ModelSpec, Ref, hookimpl


@hookimpl
def parallax_register_models() -> Iterable[ModelSpec]:
    """Offer the adapter of the family."""
    return [
        ModelSpec(
            name="olmo2",
            summary="OLMo 2 of Ai2",
            architectures=("Olmo2ForCausalLM",),
            adapter=Ref("parallax_model_olmo2.adapter:ADAPTER"),
            blocks={"torch": Ref("parallax_model_olmo2.blocks:Olmo2")},
        )
    ]
