"""Registers the model sources ``hf``, ``ms`` and ``ollama`` with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import Ref, SourceSpec, hookimpl


@hookimpl
def parallax_register_sources() -> Iterable[SourceSpec]:
    """Offer the models of the hub, of ModelScope, and of Ollama."""
    return [
        SourceSpec(
            name="hf",
            summary="models of the Hugging Face hub, as org/name, org/name@revision or, in GGUF, org/name:Q4_K_M",
            factory=Ref("parallax_source_hub.search:SearchableHub"),
        ),
        SourceSpec(
            name="ms",
            summary="models of ModelScope, as ms:org/name, ms:org/name@revision or, in GGUF, ms:org/name:Q4_K_M",
            factory=Ref("parallax_source_hub.modelscope:ModelScopeSource"),
        ),
        SourceSpec(
            name="ollama",
            summary="models that Ollama has on this machine (ollama:NAME, ollama:NAME:TAG), without a download",
            factory=Ref("parallax_source_hub.ollama:OllamaSource"),
        ),
    ]
